"""What a check of a machine or an installation found, in words for people. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One result of one check: `fail` = serving will not work, `warn` = it will be slower or may break."""

    check: str
    """What was looked at, in a word or two; stays the same from run to run."""
    status: Status
    why: str
    """One line: what was found."""
    todo: str = ""
    """One line: what to do about it; empty where there is nothing to do."""


def ok(check: str, why: str, todo: str = "") -> Finding:
    """Return a finding that needs no action; `todo` is then what could be done."""
    return Finding(check, "ok", why, todo)


def warn(check: str, why: str, todo: str) -> Finding:
    """Return a finding that costs speed, or breaks something later."""
    return Finding(check, "warn", why, todo)


def fail(check: str, why: str, todo: str) -> Finding:
    """Return a finding that keeps the chip from serving."""
    return Finding(check, "fail", why, todo)
