"""Who measured, and on what: the tool, the machine and its software."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import sglk
from sglk.backends.processor import processor_name, usable_cores
from sglk.bench.record import MachineRecord, ToolRecord

_GIB = 1 << 30


@cache
def describe_tool() -> ToolRecord:
    """Return sglk's version, and its commit when it runs from a checkout; what is running does not change with it."""
    return ToolRecord(sglk.__version__, _commit(Path(sglk.__file__).resolve().parent.parent))


def describe_machine() -> MachineRecord:
    """Return the machine's processor, usable cores, memory and operating system."""
    return MachineRecord(
        cpu=processor_name(),
        cores=usable_cores(),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB, 1),
        os=platform.platform(),
    )


def client_versions() -> dict[str, str]:
    """Return the versions of what the load generator runs on."""
    return {"sglk": sglk.__version__, "python": platform.python_version(), "httpx": version("httpx")}


def _commit(root: Path) -> str | None:
    """Short commit id, with `-dirty` behind it when tracked files differ; None outside a checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
