"""What one engine step is made of, as far as its time depends on it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sglk.engine.batch import Batch

GREEDY_TEMPERATURE = 1e-4
"""At or below it a row takes its likeliest token, as `sglk.engine.sampler` has it (which needs torch)."""

Kind = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """The rows of one step. Cheap to build, needs no torch, and can be a key."""

    prefills: tuple[tuple[int, int], ...] = ()
    """Of each prompt chunk: tokens to compute, and tokens of the request up to the last of them."""
    decodes: tuple[int, ...] = ()
    """Of each row that decodes one token: tokens of the request with the new one."""
    logits: int = 0
    """Lines of logits: one for each row that samples, and one for each prompt token whose logprob is asked for."""
    drawn: int = 0
    """Rows whose token chance decides."""

    @classmethod
    def of(cls, batch: "Batch") -> "StepShape":
        """Return the shape of what the scheduler has put together."""
        split, rows = batch.num_prefills, batch.rows
        prefills = []
        logits = drawn = 0
        for row in rows[:split]:
            new = len(row.input_ids)
            prefills.append((new, row.start + new))
            logits += len(row.scored)
        for row in rows:
            if row.samples:
                logits += 1
                drawn += row.sampling.temperature > GREEDY_TEMPERATURE and row.sampling.top_k != 1
        return cls(tuple(prefills), tuple([row.start + 1 for row in rows[split:]]), logits, drawn)

    @property
    def kind(self) -> Kind:
        """Which rows there are."""
        if self.prefills:
            return "mixed" if self.decodes else "prefill"
        return "decode"

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return len(self.decodes) + sum([new for new, _ in self.prefills])

    @property
    def rows(self) -> int:
        """Requests that take part."""
        return len(self.prefills) + len(self.decodes)
