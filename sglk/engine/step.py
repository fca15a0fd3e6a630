"""A batch laid out as arrays. Letters: T tokens, B rows, L lines of logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from sglk.attention.base import AttentionStep
from sglk.backends.rows import IntArray
from sglk.engine.batch import Batch, BatchRow


@dataclass(frozen=True, slots=True)
class Step:
    """What a model computes in one step, and what is wanted of it."""

    ids_T: IntArray
    positions_T: IntArray
    rows_T: IntArray
    """Row of each token."""
    attention: AttentionStep
    tokens_L: IntArray
    """Tokens whose logits are wanted: of the rows that sample, then of the positions that a row wants scored."""
    num_drawn: int
    """How many of them are of rows that sample."""

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts; they come first."""
        return int(self.attention.query_lens[: self.attention.num_prefills].sum())

    @property
    def rows_L(self) -> IntArray:
        """Row of each line of logits."""
        rows_L: IntArray = self.rows_T[self.tokens_L]
        return rows_L


def lay_out(batch: Batch) -> Step:
    """Return the arrays of `batch`."""
    rows = batch.rows
    if not batch.num_prefills:
        return _lay_out_decodes(rows)
    lens_B = np.array([len(row.input_ids) for row in rows], np.int64)
    starts_B = np.array([row.start for row in rows], np.int64)
    ends_B = np.cumsum(lens_B)
    first_B = ends_B - lens_B
    rows_T = np.repeat(np.arange(len(rows)), lens_B)
    ids_T = np.fromiter(chain.from_iterable(row.input_ids for row in rows), np.int64, len(rows_T))
    positions_T = np.arange(len(rows_T)) + (starts_B - first_B)[rows_T]
    drawn = [end - 1 for row, end in zip(rows, ends_B, strict=True) if row.samples]
    scored = [first + place - row.start for row, first in zip(rows, first_B, strict=True) for place in row.scored]
    attention = AttentionStep(lens_B, starts_B + lens_B, [row.pages for row in rows], batch.num_prefills)
    return Step(ids_T, positions_T, rows_T, attention, np.array(drawn + scored, np.int64), len(drawn))


def _lay_out_decodes(rows: Sequence[BatchRow]) -> Step:
    """Return the same of rows that each decode their last token: what most steps are, and the shortest take."""
    ids_B = np.array([row.input_ids[0] for row in rows], np.int64)
    positions_B = np.array([row.start for row in rows], np.int64)
    rows_B = np.arange(len(rows))
    attention = AttentionStep(np.ones_like(rows_B), positions_B + 1, [row.pages for row in rows], 0)
    return Step(ids_B, positions_B, rows_B, attention, rows_B, len(rows))
