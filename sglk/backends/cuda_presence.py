"""Whether this process can use an NVIDIA GPU, and if not, why. Nothing here starts CUDA or asks for its toolkit."""

import os
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch

from sglk.backends.finding import Finding, fail

DEVICE = "cuda device"
"""What the finding is about."""

IMPOSTORS = ("torch_xmlir",)
"""Modules of other vendors that show their cards to torch as `cuda`."""

_DRIVER_FILE = "proc/driver/nvidia/version"
_DRIVER_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")


def absence(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Finding | None:
    """Return why there is no GPU to use and what to do, or None where there is one."""
    if impostors := [name for name in IMPOSTORS if find_spec(name) is not None]:
        why = f"{impostors[0]} is installed, which shows the card of another vendor to torch as cuda"
        return fail(DEVICE, why, "name the chip whose card it is: sglk chips lists them")
    if torch.version.cuda is None:
        built = "for ROCm" if torch.version.hip else "without CUDA"
        why = f"torch {torch.__version__} is built {built}"
        return fail(DEVICE, why, "install a CUDA build of torch, choose chip=cpu, or rehearse with backend=sim")
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        why = f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']!r} hides every GPU from this process"
        return fail(DEVICE, why, "unset it, or list the GPUs to use, as in CUDA_VISIBLE_DEVICES=0,1")
    if driver_version(root) is None and not list((root / "dev").glob("nvidia[0-9]*")):
        why = "no NVIDIA driver is loaded: neither /proc/driver/nvidia nor /dev/nvidia0 is there"
        return fail(DEVICE, why, "install the driver; in a container, hand the GPUs in, as in docker run --gpus all")
    if said := _torch_says():
        return fail(DEVICE, said, "see that the driver is new enough for this build of torch")
    return None


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded kernel driver, None where there is none or it cannot be seen."""
    file = root / _DRIVER_FILE
    match = _DRIVER_VERSION.search(file.read_text()) if file.exists() else None
    return match[1] if match else None


def _torch_says() -> str | None:
    """Return why torch finds no device, in one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return None
    said = " ".join(str(caught[0].message).split()) if caught else "no reason given"
    return f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no device: {said}"
