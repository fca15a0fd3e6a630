"""Arguments of the ops on the paged KV pool. Letters as in `reference.py`; also B rows, P pages of a row.

A pool is [S, K, D], or with `head_major` in pages [pages, K, page size, D]. Slots that no row names hold NaN where the
pool's dtype has it: what is read from them shows.
"""

from typing import Any

import numpy as np
import torch

from sglk.backends.dtypes import TORCH_DTYPES
from sglk.backends.kv_values import KVScales
from sglk.backends.rows import PagedRows
from sglk.operators.arguments.dense import Shape, normal

SPARE_PAGES = 2
"""Pages of the pool that belong to no row."""


def attention_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return q_THD, both pools, the rows, the scale, and the scales of an int8 pool or None."""
    rows, slots = paged_rows(shape, generator)
    tokens, heads, width = sum(shape["query_lens"]), shape["heads"], shape["head_dim"]
    q_THD = normal(generator, shape["dtype"], tokens, heads + shape["kv_heads"], width)[:, :heads]
    unnamed_S = torch.ones(slots, dtype=torch.bool)
    unnamed_S[named_slots(shape, rows)] = False
    k_pool_SKD, k_scales_SK = filled_pool(shape, unnamed_S, generator)
    v_pool_SKD, v_scales_SK = filled_pool(shape, unnamed_S, generator)
    scales = None if k_scales_SK is None or v_scales_SK is None else KVScales(k_scales_SK, v_scales_SK)
    return q_THD, k_pool_SKD, v_pool_SKD, rows, width**-0.5, scales


def store_kv_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return k_TKD and v_TKD as they lie side by side, both pools, slots_T and the scales of an int8 pool or None."""
    tokens, kv_heads, width = shape["tokens"], shape["kv_heads"], shape["head_dim"]
    both = normal(generator, shape["dtype"], tokens, 2 * kv_heads, width)
    pages = -(-tokens // shape["page_size"]) + SPARE_PAGES
    slots = pages * shape["page_size"]
    slots_T = torch.randperm(slots, generator=generator)[:tokens]
    everything_S = torch.ones(slots, dtype=torch.bool)
    k_pool_SKD, k_scales_SK = filled_pool(shape, everything_S, generator)
    v_pool_SKD, v_scales_SK = filled_pool(shape, everything_S, generator)
    scales = None if k_scales_SK is None or v_scales_SK is None else KVScales(k_scales_SK, v_scales_SK)
    return both[:, :kv_heads], both[:, kv_heads:], k_pool_SKD, v_pool_SKD, slots_T, scales


def paged_rows(shape: Shape, generator: torch.Generator) -> tuple[PagedRows, int]:
    """Return rows over pages in random order, and the number of slots of the pool."""
    page_size, kv_lens_B = shape["page_size"], np.array(shape["kv_lens"], np.int64)
    needed_B = -(-kv_lens_B // page_size)
    pages = torch.randperm(int(needed_B.sum()) + SPARE_PAGES, generator=generator).numpy()
    table_BP = np.empty((len(kv_lens_B), int(needed_B.max())), np.int64)
    end = 0
    for row, needed in enumerate(needed_B.tolist()):
        start, end = end, end + needed
        # As the engine pads: with the row's first page.
        table_BP[row] = pages[start]
        table_BP[row, :needed] = pages[start:end]
    query_lens_B = np.array(shape["query_lens"], np.int64)
    rows = PagedRows(query_lens_B, kv_lens_B, table_BP, page_size, torch.device("cpu"), shape["window"] or None)
    return rows, len(pages) * page_size


def named_slots(shape: Shape, rows: PagedRows) -> torch.Tensor:
    """Return the slots of all tokens of all rows, those outside a window included."""
    positions = [np.arange(length) for length in shape["kv_lens"]]
    slots = [
        pages_P[offsets // rows.page_size] * rows.page_size + offsets % rows.page_size
        for pages_P, offsets in zip(rows.page_table_BP, positions, strict=True)
    ]
    return torch.from_numpy(np.concatenate(slots))


def filled_pool(
    shape: Shape, unnamed_S: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the pool in its own dtype, and scales_SK where that is int8."""
    sizes = (len(unnamed_S), shape["kv_heads"], shape["head_dim"])
    if shape["kv_dtype"] == "int8":
        scales_SK = torch.rand(sizes[:2], generator=generator) / 40
        scales_SK[unnamed_S] = torch.nan
        values_SKD = torch.randint(-127, 128, sizes, dtype=torch.int8, generator=generator)
        return laid_out(shape, values_SKD), scales_SK
    pool_SKD = torch.randn(sizes, generator=generator)
    pool_SKD[unnamed_S] = torch.nan
    return laid_out(shape, pool_SKD.to(TORCH_DTYPES[shape["kv_dtype"]])), None


def laid_out(shape: Shape, pool_SKD: torch.Tensor) -> torch.Tensor:
    """Return the pool in the layout that the case asks for."""
    if not shape["head_major"]:
        return pool_SKD
    heads, width = pool_SKD.shape[1:]
    return pool_SKD.view(-1, shape["page_size"], heads, width).transpose(1, 2).contiguous()
