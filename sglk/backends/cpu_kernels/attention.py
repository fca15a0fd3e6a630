"""Attention with own kernels. Letters: B rows, T queries, H query heads, K key/value heads, D head width, S slots."""

from weakref import WeakKeyDictionary

import numpy as np
import torch

from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.panels import KINDS
from sglk.backends.kv_values import KVScales
from sglk.backends.rows import IntArray, PagedRows

PART = 512
"""Tokens that are summed on their own, as in the C source."""
BLOCK = 32
"""Tokens that are read at a time, as in the C source."""
TILE = 48
"""Queries times heads of a prompt that meet a block of tokens while it is in the nearest cache."""
SPARE_LINES = 7
"""That a head's lines may be filled up with."""
WIDEST = 256
LINE = 16
"""Numbers of a cache line: the last ones of a head are filled up with zeros."""


class AttentionKernel:
    """The C functions over a paged pool: no keys or values are gathered.

    A query comes to the same bits in any chunk of a prompt and in a decode, beside any neighbours.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._laid_out: WeakKeyDictionary[PagedRows, RowArrays] = WeakKeyDictionary()

    def decode(
        self,
        q_BHD: torch.Tensor,
        k_pool_SKD: torch.Tensor,
        v_pool_SKD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Return out_BHD."""
        batch, heads, width = q_BHD.shape
        arrays = self._arrays(rows)
        states = batch * arrays.parts * heads * (_filled(width) + LINE)
        pools, lines = (k_pool_SKD, v_pool_SKD), heads + k_pool_SKD.shape[1] * SPARE_LINES
        return self._attend(
            "attention_decode", q_BHD, pools, (arrays.lens,), arrays, scale, scales, states, lines, arrays.parts
        )

    def prefill(
        self,
        q_THD: torch.Tensor,
        k_pool_SKD: torch.Tensor,
        v_pool_SKD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Return out_THD."""
        _, heads, width = q_THD.shape
        arrays = self._arrays(rows)
        group = heads // k_pool_SKD.shape[1]
        together = max(1, TILE // group)
        states = self._calls.threads * 2 * together * group * (_filled(width) + LINE)
        pools, lens, lines = (k_pool_SKD, v_pool_SKD), (arrays.starts, arrays.lens), together * group + SPARE_LINES
        return self._attend("attention_prefill", q_THD, pools, lens, arrays, scale, scales, states, lines, together)

    def _arrays(self, rows: PagedRows) -> "RowArrays":
        """Return what the C functions read of `rows`, which all layers of a step share."""
        arrays = self._laid_out.get(rows)
        if arrays is None:
            arrays = self._laid_out[rows] = RowArrays(rows)
        return arrays

    def _attend(
        self,
        function: str,
        q_THD: torch.Tensor,
        pools_SKD: tuple[torch.Tensor, torch.Tensor],
        lens: tuple[int, ...],
        arrays: "RowArrays",
        scale: float,
        scales: KVScales | None,
        states: int,
        lines: int,
        share: int,
    ) -> torch.Tensor:
        """Call the function.

        `states` is the floats that it needs for its states, `share` what it counts them by; `lines` is the most heads
        of queries that a thread has at a time.
        """
        _, heads, width = q_THD.shape
        if q_THD.stride()[1:] != (width, 1):
            q_THD = q_THD.contiguous()
        keys, values = pools_SKD
        threads = self._calls.threads
        out_THD = self._calls.empty(*q_THD.shape)
        room_N = self._calls.empty(states + threads * (2 * BLOCK + lines) * _filled(width))
        self._calls(
            function,
            KINDS[keys.dtype],
            q_THD.data_ptr(),
            q_THD.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            None if scales is None else scales.keys_SK.data_ptr(),
            None if scales is None else scales.values_SK.data_ptr(),
            arrays.table,
            arrays.columns,
            arrays.page_size,
            *lens,
            arrays.count,
            arrays.window,
            heads,
            keys.shape[1],
            width,
            scale,
            out_THD.data_ptr(),
            room_N.data_ptr(),
            share,
            room_N.data_ptr() + states * room_N.itemsize,
            threads,
        )
        return out_THD


class RowArrays:
    """The rows of a step as the C functions take them: sizes, and places of arrays that live as long as this does."""

    def __init__(self, rows: PagedRows) -> None:
        lens_B, table_BP = _array(rows.kv_lens_B), _array(rows.page_table_BP)
        starts = np.array(rows.query_starts, np.int64)
        self._held = (lens_B, table_BP, starts)
        self.lens, self.table, self.starts = lens_B.ctypes.data, table_BP.ctypes.data, starts.ctypes.data
        self.count, self.columns, self.page_size = len(lens_B), table_BP.shape[1], rows.page_size
        self.window = rows.window or 0
        parts = int(((lens_B - 1) // PART - rows.first_visible_B // PART).max(initial=0)) + 1
        # Rows that are refilled grow, and what a window shows moves.
        widest = -(-rows.width // PART) + (rows.window is not None) if rows.width else 0
        self.parts = max(parts, widest)
        """Of a row that decodes, at most."""


def _filled(width: int) -> int:
    return -(-width // LINE) * LINE


def _array(numbers: IntArray) -> IntArray:
    return np.ascontiguousarray(numbers, np.int64)
