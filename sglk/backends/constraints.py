"""What an op implementation demands of the shapes it is given: a test and the words for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Trait: TypeAlias = int | str | bool
Traits: TypeAlias = Mapping[str, Trait]
"""A shape class: what is known of an op's arguments when a layer is built, such as `head_dim=64, dtype="fp32"`."""


@dataclass(frozen=True)
class Constraint:
    """One demand; `text` is what people read, such as `head_dim in {64, 128}`."""

    text: str
    holds: Callable[[Traits], bool]


def one_of(trait: str, *values: Trait) -> Constraint:
    """Demand that `trait` is among `values`."""
    listed = ", ".join(str(value) for value in values)
    return Constraint(f"{trait} in {{{listed}}}", lambda traits: traits.get(trait) in values)


def multiple_of(trait: str, factor: int) -> Constraint:
    """Demand that the integer `trait` is a multiple of `factor`."""
    return Constraint(f"{trait} % {factor} == 0", lambda traits: _number(traits, trait) % factor == 0)


def at_most(trait: str, limit: int) -> Constraint:
    """Demand that the integer `trait` does not exceed `limit`."""
    return Constraint(f"{trait} <= {limit}", lambda traits: _number(traits, trait) <= limit)


def _number(traits: Traits, trait: str) -> int:
    value = traits[trait]
    assert isinstance(value, int), f"trait {trait} is {value!r}, not a number"
    return value
