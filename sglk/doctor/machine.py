"""The machine as the checks see it: file trees, environment and limits, all of which a test can make up."""

import os
import platform
import resource
import shutil
import site
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sglk import atomic_file

Bind = Callable[[str, int], socket.socket]


@dataclass(frozen=True)
class Machine:
    """What can be asked about the machine; the defaults are those of an empty one."""

    root: Path
    """Folder that holds `sys`, `dev` and `proc`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    executable: Path = Path("python")
    python_version: str = "3.11.0"
    glibc: str | None = None
    """Version of the C library; None = another than glibc."""
    search: Sequence[str] = ()
    """Folders that this Python imports from, first one first: `sys.path`."""
    user_site: str | None = None
    """The user's own site-packages, where this Python reads it."""
    cwd: Path = Path("/")
    cores: int = 1
    """Cores that this process may use."""
    max_open_files: int = 1024
    bind: Bind | None = None
    """Takes a server's socket, or raises a SglkError that says why it cannot; None = ports are not checked."""
    accessible: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK)
    """Whether this process may read and write a device node."""
    obstacle: Callable[[Path], str | None] = atomic_file.obstacle
    """Why this process cannot write a file."""
    disk_space: Callable[[Path], tuple[int, int]] = lambda path: shutil.disk_usage(path)[::2]
    """Total and free bytes of the disk below an existing path."""

    def text(self, path: str) -> str | None:
        """Return what the file at `path` below the root holds, blanks around it cut off; None = not to be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the integer in a file below the root; None where there is none."""
        text = self.text(path)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def glob(self, pattern: str) -> list[Path]:
        """Return what is below the root under names that fit `pattern`, sorted; folders closed to us are empty."""
        try:
            return sorted(self.root.glob(pattern))
        except OSError:
            return []

    def shown(self, path: Path) -> str:
        """Return the path as the machine's own programs name it."""
        return f"/{path.relative_to(self.root)}"


def this_machine(bind: Bind | None = None) -> Machine:
    """Return the machine that this process runs on."""
    return Machine(
        root=Path("/"),
        environment=os.environ,
        executable=Path(sys.executable),
        python_version=platform.python_version(),
        glibc=_glibc(),
        search=[entry or str(_cwd()) for entry in sys.path],
        user_site=site.getusersitepackages() if site.ENABLE_USER_SITE else None,
        cwd=_cwd(),
        cores=len(os.sched_getaffinity(0)),
        max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        bind=bind,
    )


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


def _glibc() -> str | None:
    library, version = platform.libc_ver()
    return version if library == "glibc" else None
