"""Files that are replaced in one step."""

import os
import secrets
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


def obstacle(path: Path) -> str | None:
    """Return why a file could not be written there, as far as can be seen without writing; None = nothing known."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        return "it is a folder"
    if target.exists() and not target.is_file():
        return None if os.access(target, os.W_OK) else "it cannot be written to"
    folder = next(parent for parent in target.parents if os.path.lexists(parent))
    if not folder.is_dir():
        return f"{str(folder)!r} is no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"no file can be made in {str(folder)!r}"
