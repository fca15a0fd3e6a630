"""Choosing the next token of each row. Letters: B rows, V vocabulary, N single logits, M rows with a mask."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sglk.backends import sampling_ops
from sglk.backends.base import DeviceBackend
from sglk.backends.constraints import Trait
from sglk.backends.dtypes import dtype_name
from sglk.engine.batch import NOT_FINITE, BatchRow, RowFailure, RowResult
from sglk.engine.guide import GrammarError
from sglk.engine.logits import Edits, LogitChanges
from sglk.engine.logprobs import Scorer

GREEDY_TEMPERATURE = 1e-4
"""At or below it a row takes its likeliest token."""


class Sampler:
    """Draws tokens; a row depends on its own logits, tokens, seed and place in the answer, never on its neighbours."""

    def __init__(self, backend: DeviceBackend, dtype: torch.dtype, vocab_size: int) -> None:
        self._device = backend.device
        self._vocab_size = vocab_size
        traits: dict[str, Trait] = {"vocab_size": vocab_size, "dtype": dtype_name(dtype)}
        self._greedy = backend.ops.select(sampling_ops.greedy, **traits)
        self._sample = backend.ops.select(sampling_ops.sample, **traits)
        self._adjust = backend.ops.select(sampling_ops.adjust_logits, **traits)
        self._mask = backend.ops.select(sampling_ops.mask_logits, **traits)
        self._scorer = Scorer(backend, dtype, vocab_size)

    def __call__(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow]) -> list[RowResult]:
        """Return one result per row that reports: a token, its logprobs if asked for, or why there is none.

        `logits_BV` has a line for each row that samples, then one for each position that a row wants scored, both in
        the order of the rows; it may be overwritten.
        """
        drawn = [row for row in rows if row.samples]
        if all(row.sampling.logprobs is None for row in rows):
            return self._choose(logits_BV, drawn)
        # Logprobs are the model's own, so its logits are kept.
        return self._scorer(logits_BV, rows, self._choose(logits_BV[: len(drawn)].clone(), drawn))

    def _choose(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow]) -> list[RowResult]:
        """Return a token per row, or NOT_FINITE where a row's logits are not numbers; overwrites `logits_BV`."""
        if not rows:
            return []
        changes, failures = collect_changes(rows)
        self._apply(logits_BV, changes)
        results = self.pick(logits_BV, rows, changes)
        for index, failure in failures.items():
            results[index] = failure
        return results

    def pick(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow], changes: LogitChanges) -> list[RowResult]:
        """Return a token per row, or NOT_FINITE; `logits_BV` have been changed as `changes` says."""
        best_B, ids_B = self._greedy(logits_BV)
        finite = [math.isfinite(best) for best in best_B.tolist()]
        results: list[RowResult] = ids_B.tolist()
        drawn = [index for index, row in enumerate(rows) if finite[index] and draws(row)]
        if drawn:
            subset_BV = logits_BV if len(drawn) == len(rows) else logits_BV[drawn]
            for index, token in zip(
                drawn, self._draw(subset_BV, [rows[index] for index in drawn]).tolist(), strict=True
            ):
                results[index] = token
        return [result if good else NOT_FINITE for result, good in zip(results, finite, strict=True)]

    def _apply(self, logits_BV: torch.Tensor, changes: LogitChanges) -> None:
        for edits in (changes.penalties, changes.biases, changes.ends):
            self._edit(logits_BV, edits)
        if changes.masks:
            self._mask(logits_BV, self._array(np.array(changes.masked_rows)), self._array(np.stack(changes.masks)))

    def _edit(self, logits_BV: torch.Tensor, edits: Edits) -> None:
        if edits.rows:
            columns = (edits.rows, edits.ids, edits.factors, edits.offsets)
            rows_N, ids_N, factors_N, offsets_N = (self._array(np.concatenate(column)) for column in columns)
            self._adjust(logits_BV, rows_N, ids_N, factors_N, offsets_N)

    def _draw(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow]) -> torch.Tensor:
        params = [row.sampling for row in rows]
        top_k = [0 if param.top_k <= 0 else min(param.top_k, self._vocab_size) for param in params]
        return self._sample(
            logits_BV,
            self._tensor([param.temperature for param in params], torch.float32),
            self._tensor(top_k, torch.int64),
            self._tensor([param.top_p for param in params], torch.float32),
            self._tensor([param.min_p for param in params], torch.float32),
            self._array(uniforms([row.seed for row in rows], [row.num_generated for row in rows])),
        )

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _array(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def collect_changes(rows: Sequence[BatchRow]) -> tuple[LogitChanges, dict[int, RowFailure]]:
    """Return what requests change about their logits, and the rows whose grammar cannot be followed."""
    changes, failures = LogitChanges(), {}
    for index, row in enumerate(rows):
        if row.rules is None:
            continue
        try:
            row.rules.collect(index, row.tokens, changes)
        except GrammarError as error:
            message = f"the answer cannot follow its grammar: {error}; simplify it"
            failures[index] = RowFailure(message, code="grammar_too_complex")
    return changes, failures


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
