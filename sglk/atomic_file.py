"""Files that are replaced in one step."""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file with its folders: a reader, or a crash, sees the old file or the new one, never a part.

    A link keeps pointing at its file, which is the one replaced. Devices and pipes are written to as they are. Raises
    OSError.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Make the folder, and let nobody else into this block for it: what one read is still true when it writes.

    A folder that the system cannot lock is entered all the same. Raises OSError where it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = None
    try:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def obstacle(path: Path) -> str | None:
    """Return why a file could not be written there, as far as can be seen without writing; None = nothing known."""
    try:
        return _obstacle(Path(os.path.realpath(path)))
    except PermissionError as error:
        return f"{error.filename!r}: {error.strerror}"


def _obstacle(target: Path) -> str | None:
    if target.is_dir():
        return "it is a folder"
    if target.exists() and not target.is_file():
        return None if os.access(target, os.W_OK) else "it cannot be written to"
    folder = next(parent for parent in target.parents if os.path.lexists(parent))
    if not folder.is_dir():
        return f"{str(folder)!r} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no file can be made in {str(folder)!r}"
    if target.exists() and _is_kept_for_others(folder.stat(), target.stat()):
        return f"{str(target)!r} is another user's, and in {str(folder)!r} only its owner may replace a file"
    return None


def _is_kept_for_others(folder: os.stat_result, file: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, file.st_uid, folder.st_uid)
