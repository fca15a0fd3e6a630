"""Attention over a paged KV pool, prefill and decode rows apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from sglk.attention.base import AttentionBackend, AttentionStep
from sglk.backends import reference
from sglk.backends.base import DeviceBackend
from sglk.backends.constraints import Trait
from sglk.backends.dtypes import dtype_name
from sglk.backends.kv_values import KVScales
from sglk.backends.rows import IntArray, PagedRows
from sglk.cache.kv import KVPool

AttentionOp: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, PagedRows, float, KVScales | None], torch.Tensor
]
Window: TypeAlias = int | None
"""Tokens that a query sees, itself the last of them; None = all."""


@dataclass(frozen=True)
class _WindowRows:
    """The rows of a step as layers of one window see them."""

    prefill: PagedRows
    decode: PagedRows


class PagedAttention(AttentionBackend):
    """Runs the backend's attention ops over `pool`. Letters as in the base class; also B rows, P pages of a row."""

    def __init__(
        self,
        backend: DeviceBackend,
        pool: KVPool,
        num_heads: int,
        dtype: torch.dtype,
        windows: Sequence[Window] = (),
        *,
        recorded: bool = False,
    ) -> None:
        """`windows` are the sliding windows of the layers, in order; empty where every layer sees everything.

        With `recorded` it serves decode steps that a graph repeats; the op then has the trait `recorded`, and reads of
        its rows nothing but `slots_device_BL` and `padding_bias_BL`, or, where it works in the host's memory,
        `page_table_BP` and `kv_lens_B`. All else is of the step that was recorded.
        """
        layout = pool.layout
        traits: dict[str, Trait] = {
            "head_dim": layout.head_dim,
            "kv_heads": layout.num_kv_heads,
            "kv_dtype": dtype_name(layout.dtype),
            "dtype": dtype_name(dtype),
            "page_size": pool.page_size,
        }
        self._store = backend.ops.select(reference.store_kv, **traits)
        self._windows = tuple(windows) or (None,) * layout.num_layers
        assert len(self._windows) == layout.num_layers
        self._prefill: dict[Window, AttentionOp] = {}
        self._decode: dict[Window, AttentionOp] = {}
        for window in set(self._windows):
            # A chip's kernel declares which windows it knows; 0 stands for none.
            seen: dict[str, Trait] = {**traits, "heads": num_heads, "window": window or 0}
            self._prefill[window] = backend.ops.select(reference.attention_prefill, **seen)
            if recorded:
                seen["recorded"] = True
            self._decode[window] = backend.ops.select(reference.attention_decode, **seen)
        self._device = backend.device
        self._copy = backend.copy
        self._pool = pool
        self._scale = layout.head_dim**-0.5
        self._num_prefill_tokens = 0

    def plan(self, step: AttentionStep, width: int = 0) -> None:
        """Lay the rows out as arrays, `width` tokens wide at least, and find the slots that the new tokens go to."""
        query_lens_B, kv_lens_B = step.query_lens, step.kv_lens
        table_BP = page_table(step.pages, kv_lens_B, self._pool.page_size, width)
        split = step.num_prefills
        self._rows = {
            window: _WindowRows(
                self._paged(query_lens_B[:split], kv_lens_B[:split], table_BP[:split], window),
                self._paged(query_lens_B[split:], kv_lens_B[split:], table_BP[split:], window, width),
            )
            for window in self._prefill
        }
        self._num_prefill_tokens = int(query_lens_B[:split].sum())
        slots_T = new_slots(query_lens_B, kv_lens_B, table_BP, self._pool.page_size)
        self._slots_T = torch.from_numpy(slots_T).to(self._device)

    def refill(self, step: AttentionStep, width: int) -> None:
        """Put another step that only decodes, with as many rows, into the tensors of the one planned with `width`."""
        table_BP = page_table(step.pages, step.kv_lens, self._pool.page_size, width)
        for rows in self._rows.values():
            rows.decode.refill(step.kv_lens, table_BP, self._copy)
        slots_T = new_slots(step.query_lens, step.kv_lens, table_BP, self._pool.page_size)
        self._copy(torch.from_numpy(slots_T), self._slots_T)

    def forward(self, layer_id: int, q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> torch.Tensor:
        """Store first, so that every token sees itself; then attend."""
        keys, values, scales = self._pool.keys[layer_id], self._pool.values[layer_id], self._pool.scales[layer_id]
        self._store(k_TKD, v_TKD, keys, values, self._slots_T, scales)
        window = self._windows[layer_id]
        rows, prefill, decode = self._rows[window], self._prefill[window], self._decode[window]
        if not len(rows.decode):
            return prefill(q_THD, keys, values, rows.prefill, self._scale, scales)
        if not len(rows.prefill):
            return decode(q_THD, keys, values, rows.decode, self._scale, scales)
        split = self._num_prefill_tokens
        prefilled_THD = prefill(q_THD[:split], keys, values, rows.prefill, self._scale, scales)
        decoded_THD = decode(q_THD[split:], keys, values, rows.decode, self._scale, scales)
        return torch.cat((prefilled_THD, decoded_THD))

    def _paged(
        self, query_lens_B: IntArray, kv_lens_B: IntArray, table_BP: IntArray, window: Window, width: int = 0
    ) -> PagedRows:
        # No query sees more than its window.
        width = width if window is None else min(width, window)
        return PagedRows(query_lens_B, kv_lens_B, table_BP, self._pool.page_size, self._device, window, width)


def page_table(pages: Sequence[Sequence[int]], kv_lens_B: IntArray, page_size: int, width: int = 0) -> IntArray:
    """Return the pages that hold each row's tokens as one array [B, P], rows padded with their first page.

    There are columns for `width` tokens at least.
    """
    needed_B = -(-kv_lens_B // page_size)
    table_BP = np.empty((len(pages), max(int(needed_B.max(initial=0)), -(-width // page_size))), np.int64)
    for row, (owned, needed) in enumerate(zip(pages, needed_B.tolist(), strict=True)):
        table_BP[row, :needed] = owned[:needed]
        table_BP[row, needed:] = owned[0]
    return table_BP


def new_slots(query_lens_B: IntArray, kv_lens_B: IntArray, table_BP: IntArray, page_size: int) -> IntArray:
    """Return the slots of the tokens that the step computes, all rows in order [T]."""
    if query_lens_B.max(initial=0) == 1:
        rows_T, positions_T = np.arange(len(query_lens_B)), kv_lens_B - 1
    else:
        rows_T = np.repeat(np.arange(len(query_lens_B)), query_lens_B)
        ends_B = np.cumsum(query_lens_B)
        # The last query of a row is its last token, so a query's position counts back from the end of the row.
        positions_T = np.arange(len(rows_T)) - ends_B[rows_T] + kv_lens_B[rows_T]
    slots_T: IntArray = table_BP[rows_T, positions_T // page_size] * page_size + positions_T % page_size
    return slots_T
