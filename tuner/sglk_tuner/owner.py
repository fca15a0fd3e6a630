"""Who runs a study now: two processes on one study would measure every point twice, and both badly."""

import fcntl
import os
import socket
import time
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from sglk.errors import RunError

Owner = dict[str, Any]
"""`{"host", "pid", "started", "until"}`: a process, and the time (seconds since 1970) until which it may be silent."""


def this_process(silent_s: float) -> Owner:
    """Return this process as an owner that reports again within `silent_s` seconds."""
    return {**_me(), "until": time.time() + silent_s}


def is_this_process(owner: Owner | None) -> bool:
    """Tell whether `owner` is this very process."""
    return owner is not None and _me().items() <= owner.items()


def words(owner: Owner) -> str:
    """Return an owner for people, such as `process 12 on a`, and when one that may have died loses the study."""
    who = f"process {owner['pid']} on {owner['host']}"
    if owner["host"] == _host():
        return who
    end = datetime.fromtimestamp(owner["until"], timezone.utc)
    return f"{who} (free from {end:%Y-%m-%d %H:%M} UTC on, should that have died)"


def may_be_alive(owner: Owner) -> bool:
    """Tell whether `owner` may still run: certain for this machine, by its last sign of life for another."""
    if owner["host"] == _host():
        started = _started(owner["pid"])
        return started is not None and started == owner["started"]
    return bool(owner["until"] > time.time())


def _me() -> Owner:
    pid = os.getpid()
    return {"host": _host(), "pid": pid, "started": _started(pid)}


@cache
def _host() -> str:
    # A machine may be given another name while a study runs, which is still the same owner's.
    return socket.gethostname()


def _started(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot: a process id may be used again."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else fields[18]


def lock_folder(folder: Path) -> TextIO:
    """Lock `folder` for this process until it closes the returned file or ends, however it ends.

    Raises RunError when another process has it, and when it cannot be written to.
    """
    try:
        return _locked(folder)
    except OSError as error:
        raise RunError(
            f"cannot write to the study folder '{folder}': {error.strerror}; mend that or set study.directory=..."
        ) from error


def _locked(folder: Path) -> TextIO:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        pid = file.read().strip() or "another process"
        file.close()
        raise RunError(
            f"study folder '{folder}' is in use by process {pid}; wait for it or set study.name=..."
        ) from None
    try:
        file.truncate(0)
        # Past the file's buffer, which would stand in the way of closing it on a full disk.
        os.write(file.fileno(), str(os.getpid()).encode())
    except OSError:
        file.close()
        raise
    return file
