"""Attention and the KV pool through the vendor's library, over head-major pages.

Letters as in `reference.py`; also M pages of the pool and P tokens of a page.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from sglk.backends import reference
from sglk.backends.constraints import Constraint, one_of
from sglk.backends.kunlun_lengths import Lengths
from sglk.backends.kunlun_library import OPS, Adapter, Demand
from sglk.backends.kv_values import KVScales
from sglk.backends.rows import PagedRows

HEAD_DIMS = (64, 128, 192, 256)
DTYPES = one_of("dtype", "fp16", "bf16")
SAME_DTYPE = Constraint("kv_dtype == dtype", lambda traits: traits.get("kv_dtype") == traits.get("dtype"))
NO_WINDOW = one_of("window", 0)
"""Public callers disagree on whether a window counts the query itself."""

STORE = Demand(OPS, "reshape_and_cache", positional=5)
PREFILL = Demand(
    OPS,
    "prefill_attention",
    (
        "q",
        "k",
        "v",
        "out",
        "is_causal",
        "is_prefix_cache",
        "block_table",
        "context_qlen_lod_cpu",
        "context_qlen_lod_xpu",
        "context_kvlen_lod_cpu",
        "context_kvlen_lod_xpu",
    ),
)
DECODE = Demand(
    OPS,
    "speculative_attention",
    (
        "out",
        "q",
        "k_cache",
        "v_cache",
        "context_lens_cpu",
        "context_lens_xpu",
        "batch_num",
        "qlen",
        "max_context_len",
        "head_num",
        "head_dim",
        "scale",
        "kv_head_num",
        "block_size",
        "max_num_blocks_per_seq",
        "block_tables",
    ),
    optional={"max_window_size": -1, "sink": None},
)


def adapters() -> tuple[Adapter, ...]:
    """Return how keys and values are stored and attended to."""
    shapes = (one_of("head_dim", *HEAD_DIMS), DTYPES, SAME_DTYPE)
    return (
        Adapter(reference.store_kv, (STORE,), store_with, (DTYPES, SAME_DTYPE)),
        Adapter(reference.attention_prefill, (PREFILL,), prefill_with, (*shapes, NO_WINDOW)),
        Adapter(reference.attention_decode, (DECODE,), decode_with, (*shapes, NO_WINDOW)),
    )


def store_with(reshape_and_cache: Callable[..., Any]) -> Callable[..., None]:
    """Return `store_kv`. Assumed: (key, value, key pages, value pages, slots), slots as int32, pages [M, K, P, D]."""

    def store_kv(
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        k_pool_MKPD: torch.Tensor,
        v_pool_MKPD: torch.Tensor,
        slots_T: torch.Tensor,
        scales: KVScales | None = None,
    ) -> None:
        reshape_and_cache(k_TKD.contiguous(), v_TKD.contiguous(), k_pool_MKPD, v_pool_MKPD, slots_T.to(torch.int32))

    return store_kv


def prefill_with(prefill_attention: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return `attention_prefill`. Assumed: with `is_prefix_cache` keys and values are pages, a row's queries are the
    last of its tokens, `lod` means where rows begin, and scores are scaled by D^-0.5, which is all that we use."""

    def attention_prefill(
        q_THD: torch.Tensor,
        k_pool_MKPD: torch.Tensor,
        v_pool_MKPD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        assert math.isclose(scale, q_THD.shape[-1] ** -0.5), "the kernel knows no other scale"
        lengths, out_THD = Lengths.of(rows), torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        prefill_attention(
            q=q_THD.contiguous(),
            k=k_pool_MKPD,
            v=v_pool_MKPD,
            out=out_THD,
            is_causal=True,
            is_prefix_cache=True,
            block_table=lengths.page_table_BP,
            context_qlen_lod_cpu=lengths.query_starts.host,
            context_qlen_lod_xpu=lengths.query_starts.device,
            context_kvlen_lod_cpu=lengths.kv_starts.host,
            context_kvlen_lod_xpu=lengths.kv_starts.device,
        )
        return out_THD

    return attention_prefill


def decode_with(speculative_attention: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return `attention_decode`. Assumed: queries and result are [B, queries of a row, H, D], here with one query;
    `max_context_len` bounds what the page table can name; a window of -1 is none."""

    def attention_decode(
        q_BHD: torch.Tensor,
        k_pool_MKPD: torch.Tensor,
        v_pool_MKPD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        lengths = Lengths.of(rows)
        batch, heads, width = q_BHD.shape
        pages = lengths.page_table_BP.shape[1]
        out_B1HD = torch.empty((batch, 1, heads, width), dtype=q_BHD.dtype, device=q_BHD.device)
        speculative_attention(
            out=out_B1HD,
            q=q_BHD.contiguous().unsqueeze(1),
            k_cache=k_pool_MKPD,
            v_cache=v_pool_MKPD,
            context_lens_cpu=lengths.kv_lens.host,
            context_lens_xpu=lengths.kv_lens.device,
            batch_num=batch,
            qlen=1,
            max_context_len=pages * rows.page_size,
            head_num=heads,
            head_dim=width,
            scale=scale,
            kv_head_num=k_pool_MKPD.shape[1],
            block_size=rows.page_size,
            max_num_blocks_per_seq=pages,
            block_tables=lengths.page_table_BP,
        )
        return out_B1HD.squeeze(1)

    return attention_decode
