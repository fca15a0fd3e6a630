"""Weights of a GGUF file, dequantised and under their Hugging Face names."""

import re
from collections.abc import Iterable

import numpy as np
import torch
from gguf.quants import dequantize

from sglk.errors import ModelLoadError
from sglk.models.gguf_file import GgufFile
from sglk.models.spec import ModelSpec

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
"""Part of the spec, not a weight."""


class GgufWeights:
    """A WeightSource over an open GGUF file."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        self._file = file
        self._spec = spec
        self._stored_names = {huggingface_name(name): name for name in file.tensors if name != _ROPE_FACTORS}
        # llama.cpp rotates neighbouring pairs for this family and stores q and k in that order.
        self._permuted = file.metadata.get("general.architecture") == "llama"

    def __str__(self) -> str:
        return str(self._file.path)

    def names(self) -> Iterable[str]:
        """Return the Hugging Face names of all tensors."""
        return self._stored_names.keys()

    def get(self, name: str) -> torch.Tensor:
        """Return one tensor in fp32."""
        stored_name = self._stored_names.get(name)
        if stored_name is None:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        weight = self._dequantise(stored_name)
        if self._permuted and ".self_attn.q_proj." in name:
            return _half_rotation_order(weight, self._spec.num_attention_heads)
        if self._permuted and ".self_attn.k_proj." in name:
            return _half_rotation_order(weight, self._spec.num_key_value_heads)
        return weight

    def _dequantise(self, stored_name: str) -> torch.Tensor:
        tensor = self._file.tensors[stored_name]
        try:
            values = dequantize(self._file.raw(stored_name), tensor.type)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self}: tensor {stored_name!r} has type {tensor.type.name}, which cannot be dequantised"
            ) from error
        values = values.reshape(tensor.shape)
        # An unquantised tensor is a view of the read-only file.
        return torch.from_numpy(values if values.flags.writeable else np.array(values))


def huggingface_name(stored_name: str) -> str:
    """Return the Hugging Face name of a llama.cpp tensor name; an unknown name is its own."""
    stem, _, suffix = stored_name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{suffix}"
    return stored_name


def _half_rotation_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Bring the rows of each head from (x0, y0, x1, y1, ...) to Hugging Face's (x0, x1, ..., y0, y1, ...)."""
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
