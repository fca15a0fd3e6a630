"""What is known about the accelerators of each vendor before any of their software is asked. Needs no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Vendor:
    """One vendor's accelerators, as the operating system shows them."""

    name: str
    backend: str
    """DeviceBackend that drives them."""
    pci_vendors: tuple[str, ...]
    """PCI vendor ids, as in https://pci-ids.ucw.cz."""
    pci_classes: tuple[str, ...]
    """How the PCI class of an accelerator of theirs begins; other devices of theirs are none."""
    nodes: str
    """Pattern below /dev that fits one node per device."""
    controls: tuple[str, ...]
    """Further nodes below /dev that a process needs."""
    visible: tuple[str, ...]
    """Environment variables that choose among the devices."""
    command: str
    """The vendor's status command."""
    driver_files: tuple[str, ...]
    """Files below the root that tell the driver's version, the best first."""
    container: str
    """What passes the devices into a container."""
    shared_nodes: bool = False
    """Whether devices of other vendors have nodes of the same names; the controls tell whose they are."""


VENDORS = (
    Vendor(
        name="NVIDIA",
        backend="cuda",
        pci_vendors=("10de",),
        pci_classes=("0300", "0302"),
        nodes="nvidia[0-9]*",
        controls=("nvidiactl", "nvidia-uvm"),
        visible=("CUDA_VISIBLE_DEVICES",),
        command="nvidia-smi",
        driver_files=("sys/module/nvidia/version", "proc/driver/nvidia/version"),
        container="docker run --gpus all",
    ),
    Vendor(
        name="AMD",
        backend="rocm",
        pci_vendors=("1002",),
        pci_classes=("0380", "1200", "0302"),
        nodes="dri/renderD*",
        controls=("kfd",),
        visible=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        command="amd-smi",
        driver_files=("sys/module/amdgpu/version",),
        container="docker run --device /dev/kfd --device /dev/dri",
        shared_nodes=True,
    ),
    Vendor(
        name="Kunlunxin",
        backend="kunlun",
        pci_vendors=("1d22",),
        pci_classes=("1200", "0b40", "0302", "0880", "ff"),
        nodes="xpu[0-9]*",
        controls=("xpuctrl",),
        visible=("XPU_VISIBLE_DEVICES",),
        command="xpu-smi",
        driver_files=("sys/module/kunlun/version",),
        container="docker run --device /dev/xpu0 --device /dev/xpuctrl",
    ),
    Vendor(
        name="Huawei",
        backend="ascend",
        pci_vendors=("19e5",),
        pci_classes=("1200",),
        nodes="davinci[0-9]*",
        controls=("davinci_manager", "devmm_svm", "hisi_hdc"),
        visible=("ASCEND_RT_VISIBLE_DEVICES",),
        command="npu-smi",
        driver_files=("usr/local/Ascend/driver/version.info",),
        container="docker run --device /dev/davinci0 --device /dev/davinci_manager",
    ),
)

ACCELERATOR_CLASSES = ("1200", "0302")
"""PCI classes that are accelerators whoever made them: processing accelerator, 3D controller without display."""


def vendor_of_backend(backend: str) -> Vendor | None:
    """Return the vendor whose devices `backend` drives; None = it needs no card that is known here."""
    return next((vendor for vendor in VENDORS if vendor.backend == backend), None)


def nodes_of(vendor: Vendor, root: Path = Path("/")) -> list[Path]:
    """Return the nodes of the vendor's devices; those that may be anybody's count where the controls are there too."""
    nodes = sorted((root / "dev").glob(vendor.nodes))
    return nodes if not vendor.shared_nodes or any((root / "dev" / name).exists() for name in vendor.controls) else []


def left_visible(value: str, count: int) -> int:
    """Return how many of `count` devices such a variable leaves: the first that does not exist hides those after it."""
    entries = [entry.strip() for entry in value.split(",")]
    exist = [not entry.lstrip("-").isdigit() or 0 <= int(entry) < count for entry in entries if entry]
    return exist.index(False) if False in exist else len(exist)


def devices_here(backend: str, environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int | None:
    """Return how many devices this process has for `backend`, None where the operating system does not show them."""
    vendor = vendor_of_backend(backend)
    count = 0 if vendor is None else len(nodes_of(vendor, root))
    for variable in vendor.visible if vendor else ():
        if variable in environment:
            count = min(count, left_visible(environment[variable], count))
    return count or None
