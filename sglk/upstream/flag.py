"""One flag of an upstream engine's command line, and the words that it takes."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglk.errors import nearest


@dataclass(frozen=True, slots=True)
class Flag:
    """What a version's parser knows of one flag."""

    name: str
    """Its first long name, such as `--tp-size`."""
    type: str
    """`int`, `float`, `text`, `switch` (stands alone), or `toggle` (stands alone, and has a `--no-` form)."""
    aliases: tuple[str, ...] = ()
    nargs: str = ""
    """`+`, `*` or `?` where it takes several words or may take none."""
    choices: tuple[str, ...] = ()
    """Words that it takes; empty = any."""
    extensible: bool = False
    """A platform plugin may add choices."""
    default: Any = None
    deprecated: str | None = None
    """What to write in its place, as far as is known; None = it is not deprecated."""

    @classmethod
    def of(cls, name: str, facts: Mapping[str, Any]) -> "Flag":
        """Read an entry of a table."""
        lists = {key: tuple(facts.get(key, ())) for key in ("aliases", "choices")}
        return cls(name, **{**facts, **lists})

    @property
    def stands_alone(self) -> bool:
        """Whether no word follows it."""
        return self.type in ("switch", "toggle")

    @property
    def negation(self) -> str | None:
        """The name that switches it off."""
        return f"--no-{self.name.removeprefix('--')}" if self.type == "toggle" else None

    def words(self, value: Any) -> list[str]:
        """Return the words that set it to `value`, its own name first; `problem` has found nothing wrong with it."""
        if self.stands_alone:
            return [self.name if value or self.negation is None else self.negation]
        if isinstance(value, list | tuple):
            return [self.name, *map(_word, value)]
        word = _word(value)
        return [f"{self.name}={word}"] if word.startswith("-") else [self.name, word]

    def problem(self, value: Any) -> str | None:
        """Return why it does not take `value`, or None."""
        if self.stands_alone:
            if not isinstance(value, bool):
                return "it is a switch; write true or false"
            if not value and self.negation is None:
                return "it is off unless it is given; leave it out"
            return None
        if isinstance(value, list | tuple):
            if not self.nargs:
                return "it takes one value, not a list"
            return next(self._problems(value), None)
        return next(self._problems([value]), None)

    def _problems(self, values: Any) -> Iterator[str]:
        for value in values:
            if value is None:
                yield "null is not a value; leave it out"
            elif self.type == "int" and not _is_int(value):
                yield f"{_shown(value)} is not an integer"
            elif self.type == "float" and not _is_float(value):
                yield f"{_shown(value)} is not a number"
            elif isinstance(value, Mapping) and self.type != "text":
                yield f"{_shown(value)} is a mapping"
            elif self.choices and not self.extensible and _word(value) not in self.choices:
                allowed = ", ".join(self.choices)
                yield f"{_shown(value)} is not allowed{nearest(_word(value), self.choices) or ';'} allowed: {allowed}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    return str(value)


def _shown(value: Any) -> str:
    return repr(_word(value)[:60])


def _is_int(value: Any) -> bool:
    if isinstance(value, str):
        # Parsers that read `8k` are of this type too.
        return bool(value) and value.lstrip("-")[:1].isdigit()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
