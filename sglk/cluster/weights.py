"""Traffic weights of device groups: what is in force, since when and why, and the way back."""

import reprlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sglk.config.groups import BOUNDS, is_weight
from sglk.errors import RequestError, nearest

HISTORY_LENGTH = 200
"""Changes that are remembered."""

_SHOWN = reprlib.Repr()
# A few lines of YAML may stand for a list of 10^9 entries.
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxlong = 1, 60, 60


@dataclass(frozen=True, slots=True)
class Weights:
    """One state of the weights. They are ratios: 8 to 2 is the same as 80 to 20, whatever the sum."""

    number: int
    """Counts the changes from 0, the weights of the start."""
    shares: Mapping[str, float]
    source: str
    """Who set them: `start`, `admin`, `file`, `ramp` or `rollback`."""
    reason: str
    since_s: float
    """Unix time."""
    before: int | None
    """Number of the weights that a rollback returns to; None = there is no way further back."""


class WeightsChanged(RequestError):
    """The weights in force are not those that a change was meant for."""


class WeightHistory:
    """The weights in force and those before them. Not thread-safe: the router's lock guards it."""

    def __init__(self, shares: Mapping[str, float], clock: Callable[[], float] = time.time) -> None:
        """Begin with `shares`, which name all groups; raises RequestError as `change` does."""
        self._clock = clock
        self._names = tuple(shares)
        first = Weights(0, checked(shares, self._names), "start", "configuration", clock(), None)
        self._entries = [first]

    @property
    def current(self) -> Weights:
        """The weights in force."""
        return self._entries[-1]

    def entries(self) -> list[Weights]:
        """Return what is remembered, oldest first."""
        return list(self._entries)

    def change(
        self,
        shares: Mapping[str, float],
        source: str,
        reason: str = "",
        *,
        step_of: int | None = None,
        if_number: int | None = None,
    ) -> Weights:
        """Put `shares` into force; groups that they do not name keep theirs.

        A change that is one step of several gives the number of the weights before the first as `step_of`, so that a
        rollback returns there. Raises RequestError for unknown groups, for what is not a number from 0 up, and when
        nothing above 0 is left; WeightsChanged (409) when others than the weights `if_number` are in force. The old
        weights then hold.
        """
        self._expect(if_number)
        merged = {**self.current.shares, **checked(shares, self._names, partly=True)}
        before = self.current.number if step_of is None else step_of
        return self._append(checked(merged, self._names), source, reason, before)

    def rollback(self, reason: str = "", *, source: str = "rollback", if_number: int | None = None) -> Weights:
        """Return to the weights before the last change (before a ramp's first step); again, and one further back.

        Raises RequestError (409) when nothing earlier is known, WeightsChanged as `change` does.
        """
        self._expect(if_number)
        known = {entry.number: entry for entry in self._entries}
        target = None if self.current.before is None else known.get(self.current.before)
        if target is None:
            message = "no earlier weights are known; set the ones you want"
            raise RequestError(message, code="no_earlier_weights", status=409)
        return self._append(target.shares, source, reason or f"back to weights {target.number}", target.before)

    def _expect(self, number: int | None) -> None:
        current = self.current
        if number is not None and number != current.number:
            message = (
                f"weights {current.number}, by {current.source}, have come into force since weights {number}; look at"
                " them, then move the traffic again"
            )
            raise WeightsChanged(message, param="if_number", code="weights_changed", status=409)

    def _append(self, shares: Mapping[str, float], source: str, reason: str, before: int | None) -> Weights:
        weights = Weights(self.current.number + 1, dict(shares), source, reason, self._clock(), before)
        self._entries.append(weights)
        if len(self._entries) > HISTORY_LENGTH:
            # A ramp may have more steps than are remembered; the way back from its last one stays.
            del self._entries[self._entries[0].number == before]
        return weights


def checked(shares: Mapping[str, object], names: Collection[str], *, partly: bool = False) -> dict[str, float]:
    """Return `shares` as finite numbers from 0 up, of groups in `names`; RequestError says what is wrong.

    Unless only a part of the weights is given, one of them must be above 0.
    """
    for name, share in shares.items():
        if name not in names:
            hint = nearest(str(name)[:60], names) or f"; there are {', '.join(names)}"
            raise RequestError(
                f"no device group is named {_SHOWN.repr(name)}{hint}", param=str(name)[:60], code="unknown_group"
            )
        if not is_weight(share):
            message = f"weight {_SHOWN.repr(share)} of device group {name!r} is not a number from 0 up{BOUNDS}"
            raise RequestError(message, param=name, code="invalid_value")
    if not partly and not any(shares.values()):
        message = "all weights would be 0; give at least one group a positive weight"
        raise RequestError(message, param="weights", code="invalid_value")
    # Of the two zeros, the one without a sign.
    return {name: float(share) or 0.0 for name, share in shares.items() if isinstance(share, int | float)}
