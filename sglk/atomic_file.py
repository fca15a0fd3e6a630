"""Files that are replaced in one step."""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

_ROOM_BYTES = 64 * 1024
"""What a disk has to have left for a file that is not known yet."""

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def write_text(path: Path, text: str) -> None:
    """Write a file with its folders: a reader, or a crash, sees the old file or the new one, never a part.

    A link keeps pointing at its file, which is the one replaced. Devices and pipes are written to as they are, and so
    is a file that is a mount of its own, of which a reader may see a part. Raises OSError.
    """
    found = _status(path)
    target = Path(os.path.realpath(path))
    if found is not None and _stays(found, target):
        path.write_text(text, encoding="utf-8")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _beside(target.parent, text.encode()) as temporary:
        temporary.replace(target)


def rescue(name: str, text: str) -> str:
    """Write what its place could not take into the folder for temporary files; return the end of a message of that.

    It says where the file is, or nothing where that folder is full too.
    """
    try:
        path = Path(gettempdir()) / f"sglk-{name}-{secrets.token_hex(4)}.json"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except OSError:
        return ""
    return f"; it is kept in {str(path)!r}"


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
    found = _status(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        return "it is a folder"
    target = Path(os.path.realpath(path))
    if found is not None and _stays(found, target):
        return None if os.access(path, os.W_OK) else "it cannot be written to"
    folder = next(parent for parent in target.parents if os.path.lexists(parent))
    if not folder.is_dir():
        return f"{str(folder)!r} is no folder"
    try:
        with _beside(folder, bytes(_ROOM_BYTES)):
            pass
    except OSError as error:
        return f"no file can be made in {str(folder)!r}: {error.strerror}"
    if found is not None and _is_kept_for_others(folder.stat(), found):
        return f"{str(target)!r} is another user's, and in {str(folder)!r} only its owner may replace a file"
    return None


def _status(path: Path) -> os.stat_result | None:
    """Return what the system says of a file, None where there is none; raises OSError for a name that cannot be."""
    # Path.exists() takes some of these names for those of files that are not there yet, by the version of Python.
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise OSError(errno.EINVAL, f"no name of a file ({error})", str(path)) from error


def _stays(found: os.stat_result, target: Path) -> bool:
    """Say whether no other file can take the place of the one at `target`."""
    return not stat.S_ISREG(found.st_mode) or _is_mount(target)


def _is_mount(target: Path) -> bool:
    # Containers are given single files as mounts. Those of the same disk are told by this list alone.
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:
        return os.path.ismount(target)
    places = (line.split(" ")[4] for line in lines if line)
    return any(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), place) == str(target) for place in places)


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
