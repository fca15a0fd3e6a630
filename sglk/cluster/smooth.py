"""Smooth weighted round robin: weights hold exactly over each cycle, and the picks of one name lie spread out."""

import math
from collections.abc import Collection, Mapping
from fractions import Fraction


class SmoothWeighted:
    """Picks names by weight, as nginx does for its upstreams.

    Each pick adds every eligible name its weight, takes the name with the highest sum, and takes the total off it. Over
    sum(weights) picks (weights as smallest whole numbers, eligible names the same) each name comes exactly as often as
    its weight says. Not thread-safe.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Take finite weights from 0 up; names of weight 0 are never picked."""
        self.weights = whole_ratios(weights)
        """The weights as smallest whole numbers."""
        self._sums = dict.fromkeys(self.weights, 0)

    @property
    def cycle(self) -> int:
        """Picks after which the pattern begins again."""
        return sum(self.weights.values())

    def pick(self, eligible: Collection[str]) -> str | None:
        """Return the next of the `eligible` names; None when none of them has a weight above 0."""
        best, total = None, 0
        for name in eligible:
            weight = self.weights.get(name, 0)
            if not weight:
                continue
            total += weight
            self._sums[name] += weight
            if best is None or self._sums[name] > self._sums[best]:
                best = name
        if best is not None:
            self._sums[best] -= total
        return best


def whole_ratios(weights: Mapping[str, float]) -> dict[str, int]:
    """Return the smallest whole numbers in the ratio of `weights`: 0.8 to 0.2 gives 4 to 1."""
    # By way of the decimal text: what was typed as 0.1 is a tenth.
    exact = {name: Fraction(repr(float(weight))) for name, weight in weights.items()}
    scale = math.lcm(*(value.denominator for value in exact.values()))
    whole = {name: int(value * scale) for name, value in exact.items()}
    divisor = math.gcd(*whole.values()) or 1
    return {name: value // divisor for name, value in whole.items()}
