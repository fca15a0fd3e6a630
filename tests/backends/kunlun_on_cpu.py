"""The kunlun backend without the card."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from sglk.backends.kunlun import KunlunBackend
from sglk.config.compose import compose
from sglk.config.schema import ChipConfig
from tests.backends.on_cpu import OnCpu

Change = Callable[[str, str], None]

BF16 = torch.bfloat16

# Traits of ops, which are chosen by them.
ATTENTION = {"head_dim": 64, "kv_heads": 2, "heads": 8, "kv_dtype": "bf16", "dtype": "bf16", "page_size": 128}
MOE = {"dtype": "bf16", "experts": 8, "top_k": 2, "hidden": 64, "width": 32}


class KunlunOnCpu(OnCpu, KunlunBackend):
    """The whole adapter, with tensors on the cpu."""

    api_version = 1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.capabilities = replace(self.capabilities, host_memory=True, collectives=None)


@cache
def chip(name: str = "kunlun_p800") -> ChipConfig:
    return compose("serve", [f"chip={name}"]).config.chip
