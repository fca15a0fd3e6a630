"""Attention of the cuda backend through FlashInfer, where it is installed. Letters as in `reference.py`.

Also B rows, N pages of all rows. FlashInfer plans the work of a step on the host, once for all layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from weakref import ref

import numpy as np
import torch

from sglk.backends import reference
from sglk.backends.constraints import Constraint, one_of
from sglk.backends.kv_values import KVScales
from sglk.backends.ops import OpRegistry
from sglk.backends.rows import IntArray, PagedRows

PROVIDER = "flashinfer"

WORKSPACE_BYTES = 128 * 2**20
"""What its documentation recommends."""

CONSTRAINTS = (
    one_of("head_dim", 64, 128, 256),
    one_of("dtype", "fp16", "bf16"),
    Constraint("kv_dtype == dtype", lambda traits: traits.get("kv_dtype") == traits.get("dtype")),
)

NOT_RECORDED = Constraint("not recorded", lambda traits: not traits.get("recorded"))
"""Plans are made on the host for the rows of one step, and a graph would keep those of the first."""

TENSOR_CORE_GROUP = 4
"""Query heads for each key/value head from which decoding is better off on tensor cores."""


def register_flashinfer(ops: OpRegistry, device: torch.device) -> None:
    """Offer prefill and decode; FlashInfer is imported when the first step runs."""
    attention = FlashInferAttention(device)
    ops.register(reference.attention_prefill, PROVIDER, attention.prefill, *CONSTRAINTS)
    ops.register(reference.attention_decode, PROVIDER, attention.decode, *CONSTRAINTS, NOT_RECORDED)


@dataclass
class _Planned:
    """A wrapper and the rows that it was last planned for."""

    wrapper: Any
    rows: Callable[[], PagedRows | None] = field(default=lambda: None)


class FlashInferAttention:
    """The wrappers of one device: one for prefill and one for decode, for each sliding window of the model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._workspace: torch.Tensor | None = None
        self._planned: dict[tuple[str, int | None], _Planned] = {}

    def prefill(
        self,
        q_THD: torch.Tensor,
        k_pool_SKD: torch.Tensor,
        v_pool_SKD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Attend causally, all rows in one kernel."""
        planned = self._of("BatchPrefillWithPagedKVCacheWrapper", rows.window)
        if planned.rows() is not rows:
            starts_B = _int32(np.array(rows.query_starts))
            planned.wrapper.plan(
                starts_B, *page_lists(rows), *_sizes(q_THD, k_pool_SKD, rows), causal=True, **_plan(q_THD, rows, scale)
            )
            planned.rows = ref(rows)
        return self._run(planned, q_THD, k_pool_SKD, v_pool_SKD, rows)

    def decode(
        self,
        q_BHD: torch.Tensor,
        k_pool_SKD: torch.Tensor,
        v_pool_SKD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Attend with one query a row."""
        grouped = q_BHD.shape[1] // k_pool_SKD.shape[1] >= TENSOR_CORE_GROUP
        planned = self._of("BatchDecodeWithPagedKVCacheWrapper", rows.window, use_tensor_cores=grouped)
        if planned.rows() is not rows:
            planned.wrapper.plan(*page_lists(rows), *_sizes(q_BHD, k_pool_SKD, rows), **_plan(q_BHD, rows, scale))
            planned.rows = ref(rows)
        return self._run(planned, q_BHD, k_pool_SKD, v_pool_SKD, rows)

    def _of(self, name: str, window: int | None, **options: Any) -> _Planned:
        if (name, window) not in self._planned:
            if self._workspace is None:
                self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
            wrapper = getattr(import_module("flashinfer"), name)(self._workspace, "NHD", **options)
            self._planned[name, window] = _Planned(wrapper)
        return self._planned[name, window]

    def _run(
        self, planned: _Planned, q: torch.Tensor, k_pool_SKD: torch.Tensor, v_pool_SKD: torch.Tensor, rows: PagedRows
    ) -> torch.Tensor:
        pages = (-1, rows.page_size, *k_pool_SKD.shape[1:])
        out: torch.Tensor = planned.wrapper.run(q.contiguous(), (k_pool_SKD.view(pages), v_pool_SKD.view(pages)))
        return out


def page_lists(rows: PagedRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where each row's pages begin in the list of all pages [B + 1], that list [N], and the tokens on the last
    page of each row [B], all int32 on the host."""
    counts_B = -(-rows.kv_lens_B // rows.page_size)
    used_BP = np.arange(rows.page_table_BP.shape[1]) < counts_B[:, None]
    last_B = rows.kv_lens_B - (counts_B - 1) * rows.page_size
    starts = np.concatenate(([0], np.cumsum(counts_B)))
    return _int32(starts), _int32(rows.page_table_BP[used_BP]), _int32(last_B)


def _sizes(q: torch.Tensor, k_pool_SKD: torch.Tensor, rows: PagedRows) -> tuple[int, int, int, int]:
    return q.shape[1], k_pool_SKD.shape[1], q.shape[2], rows.page_size


def _plan(q: torch.Tensor, rows: PagedRows, scale: float) -> dict[str, Any]:
    return {
        # The window counts the query itself, FlashInfer what is left of it.
        "window_left": -1 if rows.window is None else rows.window - 1,
        "sm_scale": scale,
        "q_data_type": q.dtype,
        "kv_data_type": q.dtype,
    }


def _int32(array: IntArray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32))
