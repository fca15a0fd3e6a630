"""Choosing tokens with own kernels. Letters: B rows, V vocabulary."""

import torch

from sglk.backends.cpu_kernels.calls import Calls

LANES = 8
"""Numbers that are taken at once, as in the C sources."""


class SamplingKernel:
    """The C functions; the one that draws sorts only those ids among which what top_k and top_p keep ends."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def greedy(self, logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return best_B and ids_B."""
        logits_BV, dtype = logits_BV.float(), logits_BV.dtype
        if logits_BV.stride(1) != 1:
            logits_BV = logits_BV.contiguous()
        rows, vocabulary = logits_BV.shape
        best_B, ids_B = self._calls.empty(rows), self._calls.empty(rows, dtype=torch.int64)
        pointers = (best_B.data_ptr(), ids_B.data_ptr())
        threads = self._calls.threads
        self._calls("greedy", logits_BV.data_ptr(), logits_BV.stride(0), rows, vocabulary, *pointers, threads)
        return best_B.to(dtype), ids_B

    def sample(
        self,
        logits_BV: torch.Tensor,
        temperature_B: torch.Tensor,
        top_k_B: torch.Tensor,
        top_p_B: torch.Tensor,
        min_p_B: torch.Tensor,
        uniform_B: torch.Tensor,
    ) -> torch.Tensor:
        """Return ids_B."""
        logits_BV = logits_BV.float()
        if logits_BV.stride(1) != 1:
            logits_BV = logits_BV.contiguous()
        rows, vocabulary = logits_BV.shape
        threads = min(self._calls.threads, rows)
        ids_B = self._calls.empty(rows, dtype=torch.int64)
        room_N = self._calls.empty(threads * 4 * (vocabulary + LANES))
        settings = [each.contiguous() for each in (temperature_B, top_k_B, top_p_B, min_p_B, uniform_B)]
        self._calls(
            "sample",
            logits_BV.data_ptr(),
            logits_BV.stride(0),
            rows,
            vocabulary,
            *(each.data_ptr() for each in settings),
            ids_B.data_ptr(),
            room_N.data_ptr(),
            threads,
        )
        return ids_B
