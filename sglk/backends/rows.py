"""Rows of a step over the paged KV pool: what an attention op needs to know beside its tensors.

Letters: B rows, T query tokens of all rows, P pages of the longest row, L tokens of the longest row.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


class PagedRows:
    """Rows whose keys and values lie in pages: row b's token j is in slot `page_table[b, j // size] * size + j % size`.

    Lengths are at hand on the host (`query_lens_B`, `kv_lens_B`) and on the device (`*_device_*`); tensors are made
    on first use and shared by all layers of the step. The queries of a row are the last of its tokens.
    """

    def __init__(
        self,
        query_lens_B: IntArray,
        kv_lens_B: IntArray,
        page_table_BP: IntArray,
        page_size: int,
        device: torch.device,
    ) -> None:
        self.query_lens_B = query_lens_B
        self.kv_lens_B = kv_lens_B
        self.page_table_BP = page_table_BP
        self.page_size = page_size
        self.device = device

    def __len__(self) -> int:
        return len(self.kv_lens_B)

    @cached_property
    def max_kv_len(self) -> int:
        """L, the length of the longest row."""
        return int(self.kv_lens_B.max())

    @cached_property
    def slots_BL(self) -> IntArray:
        """Slot of each token of each row; behind its end a row repeats its first slot, whose content is its own."""
        positions_L = np.arange(self.max_kv_len)
        slots_BL = self.page_table_BP[:, positions_L // self.page_size] * self.page_size + positions_L % self.page_size
        return np.where(positions_L < self.kv_lens_B[:, None], slots_BL, slots_BL[:, :1])

    @cached_property
    def query_starts(self) -> list[int]:
        """Index of each row's first query among the T queries, and T at the end."""
        return [0, *np.cumsum(self.query_lens_B).tolist()]

    @cached_property
    def slots_device_BL(self) -> torch.Tensor:
        """`slots_BL` on the device, int64."""
        return self.to_device(self.slots_BL)

    @cached_property
    def page_table_device_BP(self) -> torch.Tensor:
        """`page_table_BP` on the device, int64."""
        return self.to_device(self.page_table_BP)

    @cached_property
    def kv_lens_device_B(self) -> torch.Tensor:
        """`kv_lens_B` on the device, int64."""
        return self.to_device(self.kv_lens_B)

    @cached_property
    def padding_bias_BL(self) -> torch.Tensor:
        """0 for a row's tokens and -inf behind its end, fp32, to be added to attention scores."""
        bias_BL = np.where(np.arange(self.max_kv_len) < self.kv_lens_B[:, None], np.float32(0), np.float32(-np.inf))
        return self.to_device(bias_BL)

    @cached_property
    def row_slots(self) -> list[torch.Tensor]:
        """Per row, the slots of all its tokens, int64."""
        return [self.to_device(slots_L[:length]) for slots_L, length in zip(self.slots_BL, self.kv_lens_B, strict=True)]

    @cached_property
    def causal_masks(self) -> list[torch.Tensor]:
        """Per row, which tokens (columns) each query (row of the mask) may see, bool."""
        masks = []
        for queries, length in zip(self.query_lens_B, self.kv_lens_B, strict=True):
            positions_Q = np.arange(length - queries, length)
            masks.append(self.to_device(np.arange(length) <= positions_Q[:, None]))
        return masks

    def to_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        """Return `array` as a tensor on the device of the pool."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
