"""The rules of the adviser: read from data, checked once, and held against figures."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

RULES_FILE = Path(__file__).with_name("rules.yaml")

_CONDITION = re.compile(r"([\w.]+) (<=|>=|==|<|>) (?:([0-9.]+) \* )?([\w.]+)")

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Condition:
    """`figure < 0.9 * other`: a figure against a number, or against a multiple of another figure."""

    figure: str
    sign: str
    factor: float
    other: str | None
    """None = the factor is the number itself."""

    def holds(self, figures: Figures) -> bool:
        """Whether it is so; a figure that is not known makes it false."""
        value, other = figures.get(self.figure), 1.0 if self.other is None else figures.get(self.other)
        return value is not None and other is not None and _COMPARE[self.sign](value, self.factor * other)


@dataclass(frozen=True, slots=True)
class Rule:
    """What figures mean, and what to try."""

    name: str
    when: tuple[Condition, ...]
    cause: str
    evidence: str
    command: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What one rule says about one device group."""

    rule: str
    group: str
    cause: str
    evidence: str
    command: str


@cache
def load_rules(path: Path = RULES_FILE) -> tuple[Rule, ...]:
    """Return the rules of a file; ValueError for a condition that is none."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(
        Rule(
            entry["name"],
            tuple(parse_condition(text) for text in entry["when"]),
            entry["cause"],
            entry["evidence"],
            entry["command"],
        )
        for entry in entries
    )


def parse_condition(text: str) -> Condition:
    """Return the condition that `text` is; raises ValueError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form `figure < number` or `figure < number * figure`")
    figure, sign, factor, other = match.groups()
    if other.replace(".", "", 1).isdigit():
        return Condition(figure, sign, float(factor or 1) * float(other), None)
    return Condition(figure, sign, float(factor or 1), other)


def advise(
    figures: Figures, before: Figures | None, facts: Mapping[str, str], rules: Sequence[Rule] | None = None
) -> list[Advice]:
    """Return what the rules say about a group, in their order.

    `before` are the figures of its best earlier stretch; `facts` has `group`, `url`, `chip` and `model`.
    """
    known = {**figures, **{f"before.{name}": value for name, value in (before or {}).items()}}
    words: dict[str, object] = {name.replace(".", "_"): value for name, value in known.items()}
    words |= {**facts, "twice_the_window": 2 * figures.get("max_running_requests", 0.0)}
    return [
        Advice(
            rule.name, facts["group"], rule.cause, rule.evidence.format_map(_Words(words)), rule.command.format(**words)
        )
        for rule in rules or load_rules()
        if all(condition.holds(known) for condition in rule.when)
    ]


class _Words(dict[str, object]):
    """Figures for evidence; one that is not known is told as such."""

    def __missing__(self, name: str) -> "_Unknown":
        return _Unknown()


class _Unknown:
    def __format__(self, spec: str) -> str:
        return "?"
