"""Sizes of a device's memory. Needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryInfo:
    """Device memory in bytes."""

    total: int
    free: int
