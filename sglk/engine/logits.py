"""What one request changes about the model's logits before its next token is chosen. No tensors: numbers and masks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sglk.engine.guide import BITS, Guide, Mask
from sglk.engine.messages import SamplingParams
from sglk.engine.penalties import Penalties, penalises

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]


@dataclass(slots=True)
class Edits:
    """Changes of single logits, for several rows of a batch: logit / factor (or * factor below 0) + offset."""

    rows: list[Ids] = field(default_factory=list)
    ids: list[Ids] = field(default_factory=list)
    factors: list[Numbers] = field(default_factory=list)
    offsets: list[Numbers] = field(default_factory=list)

    def add(self, row: int, ids: Ids, factors: Numbers, offsets: Numbers) -> None:
        """Add changes to distinct `ids` of `row`."""
        self.rows.append(np.full(len(ids), row, np.int64))
        self.ids.append(ids)
        self.factors.append(factors)
        self.offsets.append(offsets)


@dataclass(slots=True)
class LogitChanges:
    """What a batch changes, in the order in which it takes effect."""

    penalties: Edits = field(default_factory=Edits)
    biases: Edits = field(default_factory=Edits)
    ends: Edits = field(default_factory=Edits)
    masked_rows: list[int] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)


class LogitRules:
    """Penalties, biases, minimum length and grammar of one request; lives as long as the request does."""

    def __init__(
        self, sampling: SamplingParams, prompt_length: int, stop_ids: frozenset[int], guide: Guide | None = None
    ) -> None:
        self._penalties = Penalties(sampling, prompt_length) if penalises(sampling) else None
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self._stop_ids = np.array(sorted(stop_ids), np.int64)
        self._min_new_tokens = sampling.min_new_tokens
        self._prompt_length = prompt_length
        self._guide = guide

    def collect(self, row: int, tokens: Sequence[int], changes: LogitChanges) -> None:
        """Add to `changes` what the request, whose `tokens` are those of prompt and answer, does to `row`.

        Raises GrammarError.
        """
        held_back = len(tokens) - self._prompt_length < self._min_new_tokens
        if self._guide is not None:
            self._guide.follow(tokens, self._prompt_length)
            mask = self._guide.allowed()
            changes.masked_rows.append(row)
            changes.masks.append(self._without_ends(mask) if held_back else mask)
        elif held_back and len(self._stop_ids):
            changes.ends.add(row, self._stop_ids, *_offsets(np.full(len(self._stop_ids), -np.inf, np.float32)))
        if self._penalties is not None:
            self._penalties.follow(tokens)
            changes.penalties.add(row, *self._penalties.changes())
        if len(self._bias_ids):
            changes.biases.add(row, self._bias_ids, *_offsets(self._biases))

    def _without_ends(self, mask: Mask) -> Mask:
        """Return `mask` without the tokens that end the answer, unless nothing else is left."""
        longer = mask.copy()
        words, bits = np.divmod(self._stop_ids, BITS)
        np.bitwise_and.at(longer, words, ~(np.int64(1) << bits).astype(np.int32))
        return longer if longer.any() else mask


def logit_rules(
    sampling: SamplingParams, prompt_length: int, stop_ids: frozenset[int], guide: Guide | None
) -> LogitRules | None:
    """Return the rules of a request, or None where it takes the logits as they are."""
    if guide is None and not (penalises(sampling) or sampling.logit_bias or sampling.min_new_tokens):
        return None
    return LogitRules(sampling, prompt_length, stop_ids, guide)


def _offsets(offsets: Numbers) -> tuple[Numbers, Numbers]:
    return np.ones_like(offsets), offsets
