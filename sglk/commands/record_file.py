"""Where the record of a run is written, and what it says of the command that made it."""

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sglk import atomic_file
from sglk.bench.record import Record
from sglk.config.secrets import masked
from sglk.errors import ConfigError, RunError
from sglk.interrupt import uninterrupted

RUNS = Path("runs")


def check_output(output: str | None) -> None:
    """Refuse a record that could not be written before the run rather than after it."""
    path = Path(output) if output is not None else RUNS / "record.json"
    if (why := atomic_file.obstacle(path)) is not None:
        raise ConfigError(f"cannot write the record to {str(path)!r}: {why}; write another bench.output")


def check_log() -> None:
    """Refuse to start a server whose log could not be written."""
    if (why := atomic_file.obstacle(RUNS / "server.log")) is not None:
        raise ConfigError(f"cannot write the server's log to {str(RUNS)!r}: {why}; start in a folder of your own")


def save(record: Record, output: str | None, started: datetime) -> Path:
    """Write `record` to `output`, or to a new file in `runs`; return where it is.

    One of a run that was broken off never takes the place of another: it goes to a new file beside `output`.
    Raises RunError where it cannot be written there, and says where else it is.
    """
    path = None
    try:
        # An interruption between the two would leave the empty file.
        with uninterrupted():
            if output is None:
                path = free_path(started, record.chip, record.model, record.workload["name"], ".json")
            elif record.broken_off is not None and Path(output).is_file():
                path = _free_beside(Path(output))
            else:
                path = Path(output)
            record.save(path)
    except RunError as error:
        if path is not None and (output is None or path != Path(output)):
            path.unlink(missing_ok=True)
        raise RunError(f"{error}{atomic_file.rescue('record', record.to_json())}") from error
    return path


def free_path(started: datetime, chip: str | None, model: str | None, workload: str, suffix: str) -> Path:
    """Return a new file of that name, empty, so that a run beside this one takes another."""
    names = (f"{started:%Y%m%dT%H%M%SZ}", chip or "unknown", model or "unknown", workload)
    stem = "-".join(re.sub(r"[^\w.]+", "_", name) for name in names)
    return _free(RUNS, stem, suffix)


def _free_beside(output: Path) -> Path:
    return _free(output.parent, f"{output.stem}-broken-off", output.suffix)


def _free(folder: Path, stem: str, suffix: str) -> Path:
    numbers = ("", *(f"-{number}" for number in range(2, 1000)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return next(path for number in numbers if _reserved(path := folder / f"{stem}{number}{suffix}"))
    except OSError as error:
        raise RunError(f"cannot write to {str(folder)!r}: {error.strerror}; write another bench.output") from error


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Return the command as it was typed, without its keys."""
    shown = ["".join(_masked_word(word)) for word in arguments]
    return shlex.join(["sglk", command, *shown])


def why_invalid(record: Record) -> str:
    """Return why a record is not a valid result."""
    counts = record.counts
    bad = counts.failed + counts.timeout
    first = next((request.error for request in record.requests if request.phase == "measured" and request.error), "")
    return (
        f"{bad} of {counts.requests} requests failed, more than bench.max_failure_rate="
        f"{record.load.max_failure_rate:g} allows; first: {first}"
    )


def _reserved(path: Path) -> bool:
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def _masked_word(word: str) -> tuple[str, str, str]:
    key, equals, value = word.partition("=")
    return key, equals, masked(value, key.rpartition(".")[2])
