"""What became of the op seam in a running engine: who runs what, what was switched off, what went wrong."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sglk.backends.ops import Choice, Quarantine
from sglk.engine.fault import Fault

FaultKey = tuple[str, str, str]
"""Op, provider and cause."""


@dataclass(frozen=True, slots=True)
class OpReport:
    """A snapshot, as of the first rank of a model in parts."""

    choices: tuple[Choice, ...] = ()
    """One per op and shape class."""
    quarantines: tuple[Quarantine, ...] = ()
    faults: dict[FaultKey, int] = field(default_factory=dict)
    """Requests that failed because an op's result was not finite."""


class FaultCounts:
    """Counts requests by what made their numbers not finite."""

    def __init__(self) -> None:
        self._counts: Counter[FaultKey] = Counter()

    def add(self, faults: Iterable[Fault]) -> None:
        """Count one request per fault."""
        self._counts.update((fault.op, fault.provider, fault.cause) for fault in faults)

    def snapshot(self) -> dict[FaultKey, int]:
        """Return the counts; may be called from any thread."""
        return dict(self._counts)
