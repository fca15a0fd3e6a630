"""A recorded trace of requests: when each came and how long it and its answer were, and which beginnings it shared."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import TextIO

from sglk.config.home import expanded
from sglk.errors import ConfigError

MAX_GAP_S = 900.0
"""A longer silence inside a trace is taken for a hole in it rather than for a quiet time."""

_LONGEST_LINE = 2**20
"""Characters."""
_PIECE = 2**20


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    line: int
    """In its file, from 1."""
    at_s: float
    """Seconds since some beginning."""
    input_len: int
    output_len: int
    blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks of tokens: the same name after the same names is the same text."""


def read_lines(file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a trace with their numbers; raises ConfigError for a file that is absent, empty or holed.

    Traces have millions of requests: those that nobody asks for are not read.
    """
    blank, empty = 0, True
    with opened(expanded(file)) as text:
        for number in count(1):
            line = text.readline(_LONGEST_LINE)
            if len(line) == _LONGEST_LINE:
                raise ConfigError(f"trace {file!r}, line {number}, is endless; a trace has one request a line")
            if not line:
                break
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                raise ConfigError(
                    f"trace {file!r}, line {blank}, is blank: requests seem to be missing; remove the line"
                )
            empty = False
            yield number, line.rstrip("\n")
    if empty:
        raise ConfigError(f"trace {file!r} is empty; give a file with at least one request")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a text; raises ConfigError that says why it cannot be read, also while the block reads."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(
                f"workload.file={str(path)!r} is no file that can be read twice; write what it gives to one"
            )
        with path.open(encoding="utf-8-sig") as text:
            yield text
    except OSError as error:
        raise ConfigError(f"cannot read workload.file={str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"workload.file={str(path)!r} is not text; give the trace itself, unpacked") from None


def digest(path: Path) -> str:
    """Return the SHA-256 of a text, whatever ends its lines; raises ConfigError as `opened` does."""
    found = hashlib.sha256()
    with opened(path) as text:
        while piece := text.read(_PIECE):
            found.update(piece.encode())
    return found.hexdigest()


def checked(requests: Iterable[TraceRequest], file: str, wanted: int, time_scale: float) -> list[TraceRequest]:
    """Return the first `wanted` requests, their times from 0; raises ConfigError, with the line, for what is wrong."""
    found = []
    for request in requests:
        _check_lengths(request, file)
        found.append(request)
        if len(found) == wanted:
            break
    if len(found) < wanted:
        raise ConfigError(
            f"trace {file!r} has {len(found)} requests, fewer than workload.num_requests={wanted}; lower it"
        )
    for before, after in pairwise(found):
        _check_order(before, after, file, time_scale)
    start = found[0].at_s
    return [TraceRequest(each.line, each.at_s - start, each.input_len, each.output_len, each.blocks) for each in found]


def _check_lengths(request: TraceRequest, file: str) -> None:
    for name, length in (("prompt", request.input_len), ("answer", request.output_len)):
        if length < 1:
            raise ConfigError(
                f"trace {file!r}, line {request.line}: the {name} has {length} tokens, at least 1 is needed; remove the"
                " line"
            )


def _check_order(before: TraceRequest, after: TraceRequest, file: str, time_scale: float) -> None:
    gap_s = after.at_s - before.at_s
    if gap_s < 0:
        raise ConfigError(
            f"trace {file!r}, line {after.line}, comes {-gap_s:g} s before line {before.line}; sort the trace by time"
        )
    if gap_s * time_scale > MAX_GAP_S:
        raise ConfigError(
            f"trace {file!r}: nothing comes for {_gap(gap_s, time_scale)} before line {after.line}, more than a gap of "
            f"{MAX_GAP_S:g} s; cut the trace there, or lower workload.time_scale"
        )


def _gap(gap_s: float, time_scale: float) -> str:
    if time_scale == 1:
        return f"{gap_s:g} s"
    return f"{gap_s * time_scale:g} s ({gap_s:g} s times workload.time_scale={time_scale:g})"
