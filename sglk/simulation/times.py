"""When the tokens of answers come: those of all requests that decode with the end of each step, so kept once."""

from dataclasses import dataclass, field

DIGITS = 6
"""Of seconds in a record: microseconds."""


def rounded(seconds: float) -> float:
    """Return `seconds` as a record has them."""
    return round(seconds, DIGITS)


class StepTimes:
    """Those steps of an engine in which requests decoded."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        self.gaps_s: list[float] = []
        """Between the end of each and of the one before, rounded as in a record."""

    def __len__(self) -> int:
        """Return how many there were."""
        return len(self.ends_s)

    def add(self, end_s: float) -> None:
        """Note the end of a step."""
        self.gaps_s.append(rounded(end_s - self.ends_s[-1]) if self.ends_s else 0.0)
        self.ends_s.append(end_s)


@dataclass(slots=True)
class TokenTimes:
    """The tokens of one answer, as far as anybody has asked."""

    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Between them, rounded as in a record."""

    def add(self, time_s: float) -> None:
        """Note one token."""
        if self.count:
            self.gaps_s.append(rounded(time_s - self.last_s))
        else:
            self.first_s = time_s
        self.last_s = time_s
        self.count += 1

    def add_steps(self, steps: StepTimes, start: int, end: int) -> None:
        """Note a token with each of `steps` from `start` to before `end`."""
        if start == end:
            return
        self.add(steps.ends_s[start])
        self.gaps_s += steps.gaps_s[start + 1 : end]
        self.last_s = steps.ends_s[end - 1]
        self.count += end - start - 1
