"""What an op implementation demands of the shapes it is given: a test and the words for it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sglk.errors import ConfigError

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


def parse_constraint(text: str) -> Constraint:
    """Return the demand that `text` words as above: `head_dim in {64, 128}`, `experts % 4 == 0`, `top_k <= 8`.

    Raises ConfigError for other words. A trait that is not known of a shape class is not demanded.
    """
    for pattern, build in _FORMS:
        if match := pattern.fullmatch(text.strip()):
            return _where_known(match["trait"], build(match))
    raise ConfigError(f"{text!r} is no demand on a shape; write `TRAIT in {{A, B}}`, `TRAIT % N == 0` or `TRAIT <= N`")


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Constraint]], ...] = (
    (
        re.compile(r"(?P<trait>\w+) in \{(?P<values>[\w-]+(?:, *[\w-]+)*)\}"),
        lambda match: one_of(match["trait"], *map(_value, re.split(", *", match["values"]))),
    ),
    (
        re.compile(r"(?P<trait>\w+) % (?P<factor>[1-9]\d*) == 0"),
        lambda match: multiple_of(match["trait"], int(match["factor"])),
    ),
    (
        re.compile(r"(?P<trait>\w+) <= (?P<limit>\d+)"),
        lambda match: at_most(match["trait"], int(match["limit"])),
    ),
)


def _where_known(trait: str, demand: Constraint) -> Constraint:
    return Constraint(demand.text, lambda traits: trait not in traits or demand.holds(traits))


def _value(word: str) -> Trait:
    return int(word) if re.fullmatch(r"-?\d+", word) else word


def _number(traits: Traits, trait: str) -> int:
    value = traits[trait]
    assert isinstance(value, int), f"trait {trait} is {value!r}, not a number"
    return value
