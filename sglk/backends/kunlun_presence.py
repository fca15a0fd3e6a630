"""Whether this process can use a Kunlun card, and if not, what is missing.

The card is looked for by its device nodes and its software, never by `torch.cuda`, though torch calls it `cuda`.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sglk.backends.finding import Finding, fail, ok, warn
from sglk.backends.kunlun_library import GATE_OPS, OPS

RUNTIME = "torch_xmlir"
"""Lets torch drive the card; comes with the vendor's build of torch."""

SMI = "xpu-smi"
VISIBLE = "XPU_VISIBLE_DEVICES"
_DRIVER_FILE = "sys/module/kunlun/version"


def missing(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> list[str]:
    """Return what is not there of all that a card needs; empty where it can be tried."""
    lacks = []
    if not nodes(root):
        lacks.append("no device node /dev/xpu0")
        if shutil.which(SMI, path=environment.get("PATH")) is None:
            lacks.append(f"no {SMI} on the PATH")
    if environment.get(VISIBLE) == "":
        lacks.append(f"{VISIBLE} is empty, which hides every card")
    if find_spec(RUNTIME) is None:
        lacks.append(f"{RUNTIME} is not installed in this Python")
    return lacks


def nodes(root: Path = Path("/")) -> list[Path]:
    """Return the device nodes of the cards, in order."""
    return sorted((root / "dev").glob("xpu[0-9]*"), key=lambda node: int(node.name.removeprefix("xpu")))


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded kernel driver, None where it does not say."""
    file = root / _DRIVER_FILE
    return file.read_text().strip() or None if file.exists() else None


def start_runtime() -> str | None:
    """Import what lets torch drive the card; return why that fails, or None."""
    try:
        import_module(RUNTIME)
    # A native library may raise anything while it loads.
    except Exception as error:  # noqa: BLE001
        return f"{RUNTIME} does not load ({type(error).__name__}: {' '.join(str(error).split())})"
    return None


def runtime_versions() -> dict[str, str]:
    """Return the versions of the software stack as its runtime tells them, by component.

    `torch_xmlir.__version__` has been seen as a mapping and as one string.
    """
    if find_spec(RUNTIME) is None or start_runtime() is not None:
        return {}
    told: Any = getattr(import_module(RUNTIME), "__version__", None)
    if isinstance(told, Mapping):
        return {str(component): str(version) for component, version in told.items()}
    if told is not None:
        return {RUNTIME: str(told)}
    try:
        return {RUNTIME: metadata.version(RUNTIME)}
    except metadata.PackageNotFoundError:
        return {}


def library_findings() -> Iterator[Finding]:
    """Yield, for `sglk doctor`, whether runtime and op libraries are installed."""
    way_out = "install the vendor's software stack into this Python; backend=sim rehearses without it"
    if find_spec(RUNTIME) is None:
        yield fail(RUNTIME, f"{RUNTIME}, through which torch drives the card, is not installed", way_out)
    elif (why := start_runtime()) is not None:
        yield fail(RUNTIME, why, "install the versions of driver, torch and SDK that belong together")
    else:
        versions = ", ".join(f"{component} {version}" for component, version in runtime_versions().items())
        yield ok(RUNTIME, versions or "it loads")
    for library in (OPS, GATE_OPS):
        if find_spec(library) is None:
            yield warn(library, f"{library}, with the chip's own ops, is not installed", way_out)
