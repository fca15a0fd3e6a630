"""The contract between a model's attention layers and whatever keeps the past."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from sglk.backends.rows import IntArray


@dataclass(frozen=True)
class AttentionStep:
    """Where the tokens of one step belong; rows are prefills first, then decodes."""

    query_lens: IntArray
    """Tokens that each row computes."""
    kv_lens: IntArray
    """Tokens of each row, past ones included, once the step is done."""
    pages: Sequence[Sequence[int]]
    """Pages of each row, in order of position; there may be more than `kv_lens` needs."""
    num_prefills: int

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.kv_lens.max())


class AttentionBackend(ABC):
    """Stores keys and values and attends to them. Letters: T tokens, H query heads, K key/value heads, D head width."""

    @abstractmethod
    def plan(self, step: AttentionStep) -> None:
        """Prepare what all layers of the step share; called once per step, before `forward`."""

    @abstractmethod
    def forward(self, layer_id: int, q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> torch.Tensor:
        """Store the step's keys and values of a layer, attend causally, and return out_THD."""
