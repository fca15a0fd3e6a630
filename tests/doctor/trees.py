"""Folders that look to the doctor like the /sys, /dev and /proc of a machine."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from sglk.doctor.machine import Machine

NVIDIA, KUNLUN, AMD = "0x10de", "0x1d22", "0x1002"
GPU_3D, ACCELERATOR, BRIDGE, ETHERNET = "0x030200", "0x120000", "0x060400", "0x020000"


class Tree:
    """A machine under construction."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def machine(self, environment: Mapping[str, str] | None = None, cores: int = 8) -> Machine:
        return Machine(root=self.root, environment=environment or {}, cores=cores, cwd=self.root, glibc="2.31")

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def bridge(self, path: str, width: int = 16) -> str:
        """Add a bridge at `path`, such as `pci0000:00/0000:00:01.0`, and return it."""
        self._function(path, "0x8086", BRIDGE)
        self._link(path, (width, width), (32.0, 32.0))
        return path

    def card(
        self,
        path: str,
        vendor: str,
        kind: str = GPU_3D,
        width: tuple[int, int] = (16, 16),
        speed: tuple[float, float] = (16.0, 16.0),
        group: str | None = None,
        numa_node: int = 0,
    ) -> str:
        """Add a device below the bridges of `path`; `width` and `speed` are (now, at best)."""
        self._function(path, vendor, kind)
        self._link(path, width, speed)
        self.write(f"sys/devices/{path}/numa_node", f"{numa_node}\n")
        if group is not None:
            (self.root / f"sys/kernel/iommu_groups/{group}").mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(self.root / f"sys/kernel/iommu_groups/{group}", self.root / f"sys/devices/{path}")
            (self.root / f"sys/devices/{path}/iommu_group").symlink_to(target)
        return path

    def acs(self, path: str, control: int) -> None:
        """Give a bridge a configuration space with a dummy capability and, behind it, access control services."""
        space = bytearray(4096)
        struct.pack_into("<I", space, 0x100, (0x140 << 20) | (1 << 16) | 0x0001)
        struct.pack_into("<IHH", space, 0x140, (1 << 16) | 0x000D, 0, control)
        self.write(f"sys/devices/{path}/config", bytes(space))

    def node(self, name: str) -> None:
        self.write(f"dev/{name}", "")

    def _function(self, path: str, vendor: str, kind: str) -> None:
        self.write(f"sys/devices/{path}/vendor", f"{vendor}\n")
        self.write(f"sys/devices/{path}/class", f"{kind}\n")
        bus = self.root / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / Path(path).name).symlink_to(f"../../../devices/{path}")

    def _link(self, path: str, width: tuple[int, int], speed: tuple[float, float]) -> None:
        for which, lanes, rate in zip(("current", "max"), width, speed, strict=True):
            self.write(f"sys/devices/{path}/{which}_link_width", f"{lanes}\n")
            self.write(f"sys/devices/{path}/{which}_link_speed", f"{rate} GT/s PCIe\n")
