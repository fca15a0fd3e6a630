"""Measured steps, and the prices that were fitted to them: names and numbers, no arithmetic."""

from dataclasses import dataclass

from sglk.planner.cost.features import COARSE, KNOTS, STRAIGHT
from sglk.planner.cost.shape import StepShape

FORMS = {"straight": STRAIGHT, "coarse": COARSE, "fine": KNOTS}
"""Where the line of time over tokens may bend; the form that predicts best what it was not shown is taken."""


@dataclass(frozen=True, slots=True)
class Point:
    """One shape and what its steps took."""

    shape: StepShape
    seconds: float
    """Median of the repeats."""
    spread: float
    """Half the distance between the quartiles, as a share of the median."""
    repeats: int


@dataclass(frozen=True, slots=True)
class FitError:
    """Relative errors of steps that the fit was not shown."""

    median: float
    p90: float
    worst: float


@dataclass(frozen=True)
class Fit:
    """Prices, and how far they can be trusted."""

    form: str
    largest_tokens: int
    """Of a step that was measured."""
    prices: dict[str, float]
    error: FitError
    by_kind: dict[str, float]
    """Median relative error of `prefill`, `decode` and `mixed` steps."""

    @property
    def knots(self) -> tuple[int, ...]:
        """Tokens at which the line may bend."""
        return knots(self.form, self.largest_tokens)


def knots(form: str, largest_tokens: int) -> tuple[int, ...]:
    """Return where a line may bend, so that its last stretch has been measured over twice its beginning at least."""
    bends = FORMS[form]
    return bends[:1] + tuple(knot for knot in bends[1:] if 2 * knot <= largest_tokens)
