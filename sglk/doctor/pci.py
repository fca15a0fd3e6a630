"""The PCI bus as /sys shows it: the tree above each device, its link, its IOMMU group."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sglk.backends.vendors import ACCELERATOR_CLASSES, VENDORS
from sglk.doctor.machine import Machine

DEVICES = "sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_NO_LINK = {0, 63, 255}
"""Widths that mean "unknown": some of the kernel, some of broken firmware."""


@dataclass(frozen=True)
class Link:
    """Lanes and rate per lane (10^9 transfers/s), None where the kernel does not know."""

    width: int | None
    speed: float | None


@dataclass(frozen=True)
class PciDevice:
    """One function on the bus."""

    address: str
    """Such as `0000:3b:00.0`."""
    vendor: str
    """Vendor id, four hexadecimal digits."""
    kind: str
    """Class code, six hexadecimal digits."""
    root: str
    """Root complex, such as `pci0000:3a`; empty where the tree cannot be read."""
    above: tuple[str, ...]
    """Bridges from the root port down to the device."""
    link: Link
    best: Link
    """What the device itself can do."""
    numa_node: int | None
    iommu_group: str | None

    @property
    def port(self) -> str:
        """The root port, or the device itself where it sits on the root bus."""
        return self.above[0] if self.above else self.address

    @property
    def maker(self) -> str:
        """The vendor's name, or its id where it is not known here."""
        return next((vendor.name for vendor in VENDORS if self.vendor in vendor.pci_vendors), f"vendor {self.vendor}")

    @property
    def is_accelerator(self) -> bool:
        """Whether it computes, rather than shows pictures or passes packets on."""
        known = [vendor for vendor in VENDORS if self.vendor in vendor.pci_vendors]
        return self.kind.startswith(known[0].pci_classes if known else ACCELERATOR_CLASSES)

    def __str__(self) -> str:
        return f"{self.maker} {self.address}"


def has_bus(machine: Machine) -> bool:
    """Return whether the bus can be looked at: containers may have no /sys."""
    return (machine.root / DEVICES).is_dir()


def accelerators(machine: Machine) -> list[PciDevice]:
    """Return the accelerators on the bus; a virtual function beside its card is no card of its own."""
    functions = machine.root / DEVICES
    return [
        each for each in _devices(machine) if each.is_accelerator and not (functions / each.address / "physfn").exists()
    ]


def dangling(machine: Machine) -> list[str]:
    """Return the addresses whose entry leads nowhere."""
    return [entry.name for entry in machine.glob(f"{DEVICES}/*") if not entry.exists()]


def _devices(machine: Machine) -> Iterator[PciDevice]:
    for entry in machine.glob(f"{DEVICES}/*"):
        here = f"{DEVICES}/{entry.name}"
        vendor, kind = machine.number(f"{here}/vendor"), machine.number(f"{here}/class")
        if vendor is None or kind is None:
            continue
        # Not Path.resolve: up to Python 3.12 it raises on a circle of links.
        parts = Path(os.path.realpath(entry)).parts
        numa_node = machine.number(f"{here}/numa_node")
        yield PciDevice(
            address=entry.name,
            vendor=f"{vendor:04x}",
            kind=f"{kind:06x}",
            root=next((part for part in parts if _ROOT.fullmatch(part)), ""),
            above=tuple(part for part in parts[:-1] if _ADDRESS.fullmatch(part)),
            link=link(machine, entry.name, "current"),
            best=link(machine, entry.name, "max"),
            numa_node=None if numa_node is None or numa_node < 0 else numa_node,
            iommu_group=_iommu_group(entry),
        )


def link(machine: Machine, address: str, which: str) -> Link:
    """Return the `current` or `max` link of a device or bridge."""
    width = machine.number(f"{DEVICES}/{address}/{which}_link_width")
    speed = re.match(r"\d+(\.\d+)?", machine.text(f"{DEVICES}/{address}/{which}_link_speed") or "")
    return Link(None if width in _NO_LINK else width, float(speed[0]) if speed else None)


def _iommu_group(entry: Path) -> str | None:
    try:
        return (entry / "iommu_group").readlink().name
    except OSError:
        return None
