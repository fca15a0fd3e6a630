"""Choosing the next token of each row. Letters: B rows, V vocabulary."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sglk.backends import sampling_ops
from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import dtype_name
from sglk.engine.batch import BatchRow, RowFailure, RowResult

GREEDY_TEMPERATURE = 1e-4
"""At or below it a row takes its likeliest token."""

NOT_FINITE = RowFailure(
    "the model's logits are not finite; try runtime.dtype=fp32, or another implementation of the ops (backend.fallback)"
)


class Sampler:
    """Draws tokens; a row depends on its own logits, seed and place in the answer, never on its neighbours."""

    def __init__(self, backend: DeviceBackend, dtype: torch.dtype, vocab_size: int) -> None:
        self._device = backend.device
        self._vocab_size = vocab_size
        self._greedy = backend.ops.select(sampling_ops.greedy, vocab_size=vocab_size, dtype=dtype_name(dtype))
        self._sample = backend.ops.select(sampling_ops.sample, vocab_size=vocab_size, dtype=dtype_name(dtype))

    def __call__(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow]) -> list[RowResult]:
        """Return one token per row, or NOT_FINITE where a row's logits are not numbers."""
        best_B, ids_B = self._greedy(logits_BV)
        finite: list[bool] = best_B.isfinite().tolist()
        results: list[RowResult] = ids_B.tolist()
        drawn = [index for index, row in enumerate(rows) if finite[index] and draws(row)]
        if drawn:
            subset_BV = logits_BV if len(drawn) == len(rows) else logits_BV[drawn]
            for index, token in zip(drawn, self._draw(subset_BV, [rows[index] for index in drawn]), strict=True):
                results[index] = token
        for index, good in enumerate(finite):
            if not good:
                results[index] = NOT_FINITE
        return results

    def _draw(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow]) -> list[int]:
        params = [row.sampling for row in rows]
        top_k = [0 if param.top_k <= 0 else min(param.top_k, self._vocab_size) for param in params]
        tokens_B = self._sample(
            logits_BV,
            self._tensor([param.temperature for param in params], torch.float32),
            self._tensor(top_k, torch.int64),
            self._tensor([param.top_p for param in params], torch.float32),
            torch.from_numpy(uniforms([row.seed for row in rows], [row.num_generated for row in rows])).to(
                self._device
            ),
        )
        tokens: list[int] = tokens_B.tolist()
        return tokens

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)


def draws(row: BatchRow) -> bool:
    """Return whether chance decides: not for a tiny temperature, nor where one candidate is left."""
    return row.sampling.temperature > GREEDY_TEMPERATURE and row.sampling.top_k != 1


def uniforms(seeds: Sequence[int], counters: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return one number in [0, 1) per row, a function of (seed, counter) alone.

    Two rounds of SplitMix64's finaliser (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
    generators"); the upper 24 bits make the fp32 number.
    """
    seed_B = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64)
    counter_B = np.array(counters, np.uint64)
    bits_B = _mix(_mix(seed_B) + counter_B)
    return ((bits_B >> np.uint64(40)) * np.float64(2.0**-24)).astype(np.float32)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
