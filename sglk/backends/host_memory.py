"""Memory of the machine, or of the container that the process lives in."""

import ctypes
import os
import resource
import sys
from pathlib import Path

from sglk.backends.memory import MemoryInfo

_CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Folder, limit file, usage file and the statistic of reclaimable file cache, for cgroup v2 and v1."""


def host_memory(root: Path = Path("/")) -> MemoryInfo:
    """Return total and available bytes, the cgroup's where its limit is below the machine's."""
    machine = _meminfo(root / "proc/meminfo") or _sysconf()
    limit = _cgroup(root)
    if limit is None or limit.total >= machine.total:
        return machine
    return MemoryInfo(total=limit.total, free=min(limit.free, machine.free))


def return_freed_memory() -> None:
    """Give the system back what freed tensors have left in the heap, where the C library can (glibc).

    It keeps what lies between memory in use: of a model that is loaded tensor by tensor, as much again as the weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def peak_resident_bytes() -> int:
    """Return the largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _meminfo(path: Path) -> MemoryInfo | None:
    if not path.exists():
        return None
    sizes = {}
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        sizes[key] = int(value.split()[0]) * 1024
    return MemoryInfo(total=sizes["MemTotal"], free=sizes["MemAvailable"])


def _sysconf() -> MemoryInfo:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MemoryInfo(total=total, free=total)


def _cgroup(root: Path) -> MemoryInfo | None:
    for folder, limit_file, usage_file, reclaimable in _CGROUPS:
        limit_path, usage_path = root / folder / limit_file, root / folder / usage_file
        if not (limit_path.exists() and usage_path.exists()):
            continue
        limit = limit_path.read_text().strip()
        if limit == "max":
            return None
        used = int(usage_path.read_text()) - _statistic(root / folder / "memory.stat", reclaimable)
        return MemoryInfo(total=int(limit), free=max(0, int(limit) - used))
    return None


def _statistic(path: Path, key: str) -> int:
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)
