"""Qwen2 and Qwen2.5, dense."""

from dataclasses import replace

import torch

from sglk.backends.base import DeviceBackend
from sglk.models.llama import LlamaForCausalLM
from sglk.models.spec import ModelSpec


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama with biases on q, k and v, whatever the configuration says (Yang et al. 2024, arXiv:2407.10671)."""

    def __init__(self, spec: ModelSpec, backend: DeviceBackend, dtype: torch.dtype) -> None:
        super().__init__(replace(spec, attention_bias=True), backend, dtype)
