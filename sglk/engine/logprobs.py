"""Logprobs of new tokens and of tokens of the prompt. Letters: B lines of logits, V vocabulary, C likeliest ids."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from sglk.backends import sampling_ops
from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import dtype_name
from sglk.engine.batch import NOT_FINITE, BatchRow, RowFailure, RowResult, Scored
from sglk.engine.messages import LOGPROB_FLOOR, TokenLogprob


@dataclass(frozen=True, slots=True)
class Target:
    """A token whose logprob is wanted."""

    line: int
    """Where the logits are."""
    token: int
    count: int
    """How many of the likeliest tokens are wanted beside it."""


class Scorer:
    """Tells how likely the model thought tokens, whatever a request changed about its logits to choose them."""

    def __init__(self, backend: DeviceBackend, dtype: torch.dtype, vocab_size: int) -> None:
        self._device = backend.device
        self._logprobs = backend.ops.select(sampling_ops.token_logprobs, vocab_size=vocab_size, dtype=dtype_name(dtype))

    def __call__(
        self, logits_BV: torch.Tensor, rows: Sequence[BatchRow], chosen: Sequence[RowResult]
    ) -> list[RowResult]:
        """Return one result per row that reports, with logprobs where they are asked for.

        `logits_BV` has a line for each row that samples, whose results are `chosen`, then one for each position that a
        row wants scored, both in the order of the rows.
        """
        new, prompt = _new_tokens(rows, chosen), _prompt_tokens(rows, len(chosen))
        scores = self._score(logits_BV, new + prompt) if new or prompt else []
        return list(_merge(rows, iter(chosen), iter(scores[: len(new)]), iter(scores[len(new) :])))

    def _score(self, logits_BV: torch.Tensor, targets: Sequence[Target]) -> list[TokenLogprob]:
        if len(targets) < len(logits_BV):
            logits_BV = logits_BV[[target.line for target in targets]]
        ids_B = torch.tensor([target.token for target in targets], dtype=torch.int64, device=self._device)
        logprobs_B, top_BC, top_ids_BC = self._logprobs(logits_BV, ids_B, max(target.count for target in targets))
        logprobs = logprobs_B.clamp(min=LOGPROB_FLOOR).tolist()
        lines = zip(targets, logprobs, top_ids_BC.tolist(), top_BC.clamp(min=LOGPROB_FLOOR).tolist(), strict=True)
        return [
            TokenLogprob(target.token, logprob, tuple(zip(ids[: target.count], top[: target.count], strict=True)))
            for target, logprob, ids, top in lines
        ]


def _new_tokens(rows: Sequence[BatchRow], chosen: Sequence[RowResult]) -> list[Target]:
    drawn = (row for row in rows if row.samples)
    return [
        Target(line, result, row.sampling.logprobs)
        for line, (row, result) in enumerate(zip(drawn, chosen, strict=True))
        if row.sampling.logprobs is not None and isinstance(result, int)
    ]


def _prompt_tokens(rows: Sequence[BatchRow], first_line: int) -> list[Target]:
    places = [(row, place) for row in rows for place in row.scored]
    return [
        Target(line, row.tokens[place + 1], row.sampling.logprobs or 0)
        for line, (row, place) in enumerate(places, start=first_line)
    ]


def _merge(
    rows: Sequence[BatchRow], chosen: Iterator[RowResult], new: Iterator[TokenLogprob], prompt: Iterator[TokenLogprob]
) -> Iterator[RowResult]:
    for row in rows:
        result = next(chosen) if row.samples else None
        scored = tuple(islice(prompt, len(row.scored)))
        if isinstance(result, RowFailure) or row.sampling.logprobs is None:
            if result is not None:
                yield result
        elif row.reports:
            token = next(new) if row.samples else None
            finite = not any(math.isnan(each.logprob) for each in scored)
            yield Scored(token, scored) if finite else NOT_FINITE
