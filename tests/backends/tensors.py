"""Made-up tensors and rows, and how near results have to be."""

import numpy as np
import torch

from sglk.backends.rows import PagedRows


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def paged_rows(
    query_lens: list[int], kv_lens: list[int], page_size: int, window: int | None = None
) -> tuple[PagedRows, int]:
    """Return rows over pages in random order, and the number of slots."""
    needed = [-(-length // page_size) for length in kv_lens]
    pages = np.random.default_rng(0).permutation(sum(needed))
    table = np.zeros((len(kv_lens), max(needed)), np.int64)
    for row, count in enumerate(needed):
        table[row, :count], pages = pages[:count], pages[count:]
        table[row, count:] = table[row, 0]
    rows = PagedRows(np.array(query_lens), np.array(kv_lens), table, page_size, torch.device("cpu"), window)
    return rows, sum(needed) * page_size
