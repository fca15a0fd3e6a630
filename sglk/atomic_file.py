"""Files that are replaced in one step."""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOM_BYTES = 64 * 1024
"""What a disk has to have left for a file that is not known yet."""


def write_text(path: Path, text: str) -> None:
    """Write a file with its folders: a reader, or a crash, sees the old file or the new one, never a part.

    A link keeps pointing at its file, which is the one replaced. Devices and pipes are written to as they are. Raises
    OSError.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _beside(target.parent, text.encode()) as temporary:
        temporary.replace(target)


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
    """Return why a file cannot be written there; None = one beside it has just been, and is gone again."""
    try:
        return _obstacle(path)
    except OSError as error:
        return f"{error.filename!r}: {error.strerror}"


def _obstacle(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder"
    if path.exists() and not path.is_file():
        return None if os.access(path, os.W_OK) else "it cannot be written to"
    target = Path(os.path.realpath(path))
    folder = next(parent for parent in target.parents if os.path.lexists(parent))
    if not folder.is_dir():
        return f"{str(folder)!r} is no folder"
    try:
        with _beside(folder, bytes(_ROOM_BYTES)):
            pass
    except OSError as error:
        return f"no file can be made in {str(folder)!r}: {error.strerror}"
    if target.exists() and _is_kept_for_others(folder.stat(), target.stat()):
        return f"{str(target)!r} is another user's, and in {str(folder)!r} only its owner may replace a file"
    return None


@contextmanager
def _beside(folder: Path, content: bytes) -> Iterator[Path]:
    """Write a file of no name that matters, which is gone after the block if it is still there."""
    temporary = folder / f".{secrets.token_hex(8)}.part"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _is_kept_for_others(folder: os.stat_result, file: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, file.st_uid, folder.st_uid)
