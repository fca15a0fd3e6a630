"""Rows of a step over the paged KV pool: what an attention op needs to know beside its tensors.

Letters: B rows, T query tokens of all rows, P pages of the longest row, L visible tokens of the row with most of them.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


class PagedRows:
    """Rows whose keys and values lie in pages: row b's token j is in slot `page_table[b, j // size] * size + j % size`.

    Lengths are at hand on the host (`query_lens_B`, `kv_lens_B`) and on the device (`*_device_*`); tensors are made
    on first use and shared by all layers of the step. The queries of a row are the last of its tokens. With a sliding
    `window` a query sees that many tokens, itself the last of them; `slots_BL`, `row_slots`, `causal_masks` and
    `padding_bias_BL` then cover only the tokens that some query of the row sees. `slots_BL` and `padding_bias_BL` have
    `width` columns at least.
    """

    def __init__(
        self,
        query_lens_B: IntArray,
        kv_lens_B: IntArray,
        page_table_BP: IntArray,
        page_size: int,
        device: torch.device,
        window: int | None = None,
        width: int = 0,
    ) -> None:
        self.query_lens_B = query_lens_B
        self.kv_lens_B = kv_lens_B
        self.page_table_BP = page_table_BP
        self.page_size = page_size
        self.device = device
        self.window = window
        self.width = width

    def __len__(self) -> int:
        return len(self.kv_lens_B)

    @cached_property
    def first_visible_B(self) -> IntArray:
        """Position of the first token that a query of the row sees: 0 without a window."""
        if self.window is None:
            return np.zeros_like(self.kv_lens_B)
        first_B: IntArray = self.kv_lens_B - self.query_lens_B - self.window + 1
        return first_B.clip(min=0)

    @cached_property
    def visible_lens_B(self) -> IntArray:
        """Tokens from the first visible one to the end of the row."""
        visible_lens_B: IntArray = self.kv_lens_B - self.first_visible_B
        return visible_lens_B

    @cached_property
    def slots_BL(self) -> IntArray:
        """Slots of the visible tokens; behind its end a row repeats the first of them, whose content is its own."""
        offsets_L = np.arange(max(self.visible_lens_B.max(), self.width))
        inside_BL = offsets_L < self.visible_lens_B[:, None]
        positions_BL = self.first_visible_B[:, None] + np.where(inside_BL, offsets_L, 0)
        pages_BL = np.take_along_axis(self.page_table_BP, positions_BL // self.page_size, axis=1)
        slots_BL: IntArray = pages_BL * self.page_size + positions_BL % self.page_size
        return slots_BL

    @cached_property
    def query_starts(self) -> list[int]:
        """Index of each row's first query among the T queries, and T at the end."""
        return [0, *np.cumsum(self.query_lens_B).tolist()]

    @cached_property
    def slots_device_BL(self) -> torch.Tensor:
        """`slots_BL` on the device, int64."""
        return self.to_device(self.slots_BL)

    @cached_property
    def padding_bias_BL(self) -> torch.Tensor:
        """0 for a row's visible tokens and -inf behind its end, fp32, to be added to attention scores."""
        inside_BL = np.arange(max(self.visible_lens_B.max(), self.width)) < self.visible_lens_B[:, None]
        return self.to_device(np.where(inside_BL, np.float32(0), np.float32(-np.inf)))

    @cached_property
    def row_slots(self) -> list[torch.Tensor]:
        """Per row, the slots of its visible tokens, int64."""
        lens_B = self.visible_lens_B
        return [self.to_device(slots_L[:length]) for slots_L, length in zip(self.slots_BL, lens_B, strict=True)]

    @cached_property
    def causal_masks(self) -> list[torch.Tensor]:
        """Per row, which of the visible tokens (columns) each query (row of the mask) may see, bool."""
        masks = []
        for first, queries, length in zip(self.first_visible_B, self.query_lens_B, self.kv_lens_B, strict=True):
            distances_QL = np.arange(length - queries, length)[:, None] - np.arange(first, length)
            seen_QL = distances_QL >= 0
            if self.window is not None:
                seen_QL &= distances_QL < self.window
            masks.append(self.to_device(seen_QL))
        return masks

    def refill(
        self, kv_lens_B: IntArray, page_table_BP: IntArray, copy: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        """Put other rows, as many and as wide, into the arrays and tensors that recorded work reads of these."""
        np.copyto(self.kv_lens_B, kv_lens_B)
        np.copyto(self.page_table_BP, page_table_BP)
        held = {name: self.__dict__[name] for name in ("slots_device_BL", "padding_bias_BL") if name in self.__dict__}
        if held:
            sizes = (self.page_size, self.device, self.window, self.width)
            rows = PagedRows(self.query_lens_B, kv_lens_B, page_table_BP, *sizes)
            for name, tensor in held.items():
                copy(getattr(rows, name), tensor)

    def to_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        """Return `array` as a tensor on the device of the pool."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
