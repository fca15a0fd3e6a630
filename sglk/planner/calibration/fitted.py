"""Measured steps, and the prices that were fitted to them: names and numbers, no arithmetic."""

from dataclasses import dataclass, replace
from itertools import pairwise

from sglk.planner.cost.features import COARSE, EVERY, EVERY_LINE, KNOTS, LINE_KNOTS, STRAIGHT, Features
from sglk.planner.cost.shape import StepShape

FORMS = {"straight": STRAIGHT, "coarse": COARSE, "fine": KNOTS, "every": EVERY}
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
    largest_lines: int
    """Most lines of logits of one."""
    prices: dict[str, float]
    error: FitError
    by_kind: dict[str, float]
    """Median relative error of `prefill`, `decode` and `mixed` steps."""

    def features(self, features: Features) -> Features:
        """Return the quantities that there are prices for."""
        return bent(features, self.form, self.largest_tokens, self.largest_lines)


def bent(features: Features, form: str, largest_tokens: int, largest_lines: int) -> Features:
    """Return quantities whose lines bend as `form` says, and nowhere that only larger steps than these could tell."""
    lines = EVERY_LINE if form == "every" else LINE_KNOTS
    return replace(features, knots=_within(FORMS[form], largest_tokens), line_knots=_within(lines, largest_lines))


def _within(knots: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """Return the knots behind which something has been measured.

    A last stretch that others would follow has to reach to twice its beginning at least.
    """
    return knots[:1] + tuple(
        knot for knot, end in pairwise((*knots[1:], 2 * knots[-1])) if min(end, 2 * knot) <= largest
    )
