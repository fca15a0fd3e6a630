"""Checks of the accelerators of each vendor: cards, driver, device nodes, and what the environment hides of them."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sglk.backends.finding import Finding, Status, fail, ok, warn
from sglk.backends.vendors import VENDORS, Vendor, left_visible, nodes_of
from sglk.doctor.deployment import Deployment
from sglk.doctor.machine import Machine
from sglk.doctor.pci import accelerators, has_bus

_VERSION = re.compile(r"\d+(\.\d+)+")


def check_devices(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Say for each vendor whether its devices can be reached; only those of the chosen backend have to be."""
    for vendor in VENDORS:
        wanted = vendor.backend in deployment.backends
        yield from _vendor(machine, vendor, wanted)
        if wanted:
            yield from _named_devices(machine, vendor, deployment.devices(vendor.backend))


def _vendor(machine: Machine, vendor: Vendor, wanted: bool) -> Iterator[Finding]:
    nodes = nodes_of(vendor, machine.root)
    cards = [device for device in accelerators(machine) if device.maker == vendor.name]
    missing = [f"/dev/{name}" for name in vendor.controls if not (machine.root / "dev" / name).exists()]
    bad: Status = "fail" if wanted else "ok"
    if not nodes:
        yield Finding("devices", bad, f"{vendor.backend}: not available ({_reason(machine, vendor, bool(cards))})",
                      _way_in(vendor, bool(cards)) if wanted or cards else "")  # fmt: skip
        return
    closed = [node for node in (*nodes, *_existing(machine, vendor)) if not machine.accessible(node)]
    if closed:
        why = f"{vendor.backend}: no permission to use {', '.join(map(machine.shown, closed))}"
        yield Finding("devices", bad, why, f"{_group_advice(closed[0])}, or start as a user who may")
        return
    if missing:
        why = f"{vendor.backend}: {len(nodes)} device nodes, but no {', '.join(missing)}"
        yield Finding("devices", bad, why, f"load all of the driver (`{vendor.command}`), or {vendor.container}")
        return
    driver = driver_version(machine, vendor)
    on_bus = f"{len(cards)} on the PCI bus, " if has_bus(machine) else ""
    names = ", ".join(map(machine.shown, nodes))
    yield ok("devices", f"{vendor.backend}: {names} ({on_bus}driver {driver or 'of unknown version'})")


def driver_version(machine: Machine, vendor: Vendor) -> str | None:
    """Return the version of the loaded kernel driver, None where the system does not tell it."""
    texts = (machine.text(file) for file in vendor.driver_files)
    return next((match[0] for text in texts if text and (match := _VERSION.search(text))), None)


def _existing(machine: Machine, vendor: Vendor) -> list[Path]:
    return [node for name in vendor.controls if (node := machine.root / "dev" / name).exists()]


def _reason(machine: Machine, vendor: Vendor, on_bus: bool) -> str:
    nodes = f"/dev/{vendor.controls[0] if machine.glob(f'dev/{vendor.nodes}') else vendor.nodes}"
    if on_bus:
        loaded = driver_version(machine, vendor) is not None
        return (
            f"{vendor.name} cards are on the PCI bus, but there is no {nodes}:"
            f" {'not passed into this container' if loaded else 'the driver is not loaded'}"
        )
    bus = f"no {vendor.name} card is on the PCI bus" if has_bus(machine) else "the PCI bus cannot be read"
    return f"{bus}, and there is no {nodes}"


def _way_in(vendor: Vendor, on_bus: bool) -> str:
    if on_bus:
        return f"install or load the driver (`{vendor.command}` shows it); in a container: {vendor.container}"
    return f"use a machine with such a card; in a container: {vendor.container}; without one rehearse with backend=sim"


def _group_advice(node: Path) -> str:
    try:
        return f"add the user to group {node.group()!r}"
    except (OSError, KeyError):
        return "change the permissions of these nodes"


def _named_devices(machine: Machine, vendor: Vendor, names: list[str]) -> Iterator[Finding]:
    count = len(nodes_of(vendor, machine.root))
    indexes = [int(name.rpartition(":")[2]) for name in names]
    if count and (beyond := _beyond(vendor, indexes, count)):
        yield fail("devices", f"{beyond} in groups, but this machine has {count}", "name devices from index 0 up")
        return
    for variable in vendor.visible:
        value = machine.environment.get(variable)
        left = None if value is None else left_visible(value, count)
        if left and (beyond := _beyond(vendor, indexes, left)):
            yield fail(
                "devices",
                f"{beyond} in groups, but {variable}={value} leaves {left} of {count}",
                f"name more devices in {variable}, or fewer in groups",
            )


def _beyond(vendor: Vendor, indexes: list[int], count: int) -> str:
    """Return the names of those of `indexes` that do not exist among `count` devices."""
    return ", ".join(f"{vendor.backend}:{index}" for index in indexes if index >= count)


def check_visible_devices(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Read the variables that hide devices from a process."""
    for vendor in VENDORS:
        for variable in vendor.visible:
            value = machine.environment.get(variable)
            if value is not None:
                yield _visible(machine, vendor, variable, value, vendor.backend in deployment.backends)


def _visible(machine: Machine, vendor: Vendor, variable: str, value: str, wanted: bool) -> Finding:
    entries = [entry.strip() for entry in value.split(",")]
    count = len(nodes_of(vendor, machine.root))
    numbers = [int(entry) for entry in entries if entry.lstrip("-").isdigit()]
    twice = [entry for entry, times in Counter(entries).items() if times > 1]
    if not value.strip() or numbers[:1] == [-1]:
        why = f"{variable}={value} hides every device from this process"
        # Deliberate, on a machine that is to serve with another chip.
        return fail(variable, why, f"unset it, or name devices: {variable}=0") if wanted else ok(variable, why)
    if twice:
        return warn(variable, f"{variable}={value} names {twice[0]} twice", "name each device once")
    absent = [number for number in numbers if number < 0 or (count and number >= count)]
    if absent:
        return warn(
            variable,
            f"{variable}={value} names device {absent[0]}, of {count} here; what follows it is hidden too",
            f"name devices from 0 to {count - 1}",
        )
    return ok(variable, f"{variable}={value}: the server numbers these devices from 0 again")


def check_cuda_home(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Look where CUDA_HOME points; only plugins that compile kernels when they start ever do."""
    wanted = "cuda" in deployment.backends
    why = _cuda_home(machine)
    if why is None:
        yield ok("CUDA_HOME", "CUDA_HOME is not set, and nothing of sglk needs it")
    elif not why:
        yield ok("CUDA_HOME", f"CUDA_HOME={machine.environment['CUDA_HOME']} holds a compiler")
    elif wanted:
        yield warn("CUDA_HOME", why, "unset it, or name the folder that holds bin/nvcc, such as /usr/local/cuda")
    else:
        yield ok("CUDA_HOME", f"{why}; of no effect here, it can be unset")


def _cuda_home(machine: Machine) -> str | None:
    """Return what is wrong with the variable; empty = nothing, None = it is not set."""
    value = machine.environment.get("CUDA_HOME")
    if value is None:
        return None
    if not value:
        return "CUDA_HOME is set but empty"
    folder = machine.root / value.lstrip("/")
    if not folder.is_dir():
        return f"CUDA_HOME={value} is no folder"
    return "" if (folder / "bin/nvcc").exists() else f"CUDA_HOME={value} holds no bin/nvcc"
