"""Checks of torch: what it was built for, and whether it finds the devices that the chip needs it to find."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sglk.backends.finding import Finding, fail, ok, warn
from sglk.doctor.children import ask
from sglk.doctor.deployment import Deployment
from sglk.doctor.machine import Machine
from sglk.errors import RunError
from sglk.plugins.causes import advice

_BUILDS = {"cuda": "cuda", "rocm": "hip"}
"""Backend -> what torch calls the toolkit that it has to be built with."""


def check_torch(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Import torch in a child process and look at what it is."""
    try:
        build = ask("torch_build")
    except RunError as error:
        yield fail("torch", f"torch does not come up: {error}", _way_out(str(error), machine))
        return
    yield from build_findings(build, deployment.backends)


def _way_out(message: str, machine: Machine) -> str:
    return advice(message) or f"{machine.executable} -m pip install --force-reinstall torch"


def build_findings(build: dict[str, Any], used: Sequence[str]) -> Iterator[Finding]:
    """Judge what the child says of torch, for the backends in use."""
    toolkit = next((f"{name} {build[name]}" for name in ("cuda", "hip") if build[name]), "the CPU alone")
    yield ok("torch", f"torch {build['version']} for {toolkit} ({build['file']})")
    needing = [backend for backend in used if backend in _BUILDS]
    for backend in needing:
        if not build[_BUILDS[backend]]:
            yield fail("torch", f"torch {build['version']} is no build for {backend}", f"install one for {backend}")
        elif build["reason"]:
            yield fail(
                "torch", f"torch finds no device: {build['reason']}", "see the findings on devices and variables"
            )
    if not needing:
        yield _unwanted(build)
    for device in build["devices"]:
        yield from _kernels(device, build["architectures"])


def _unwanted(build: dict[str, Any]) -> Finding:
    if build["reason"]:
        return ok("torch", f"cuda: not available to torch ({build['reason'].rstrip('.')})")
    names = ", ".join(device["name"] for device in build["devices"])
    return ok("torch", f"torch sees {names or 'no device'} as cuda, a name that the chosen backend does not use")


def _kernels(device: dict[str, Any], architectures: list[str]) -> Iterator[Finding]:
    """Look for kernels that the device can run: those of its own generation, or text that the driver compiles."""
    if not architectures or device["architecture"] in architectures:
        return
    major, minor = _generation(device["architecture"])
    known = [_generation(name) for name in architectures if name.startswith("sm_")]
    # Text of any generation is compiled by the driver; code runs on later cards of its own major generation.
    if any(name.startswith("compute_") for name in architectures):
        return
    if any(each[0] == major and each[1] <= minor for each in known):
        return
    yield warn(
        "torch",
        f"torch has no kernels for {device['name']} ({device['architecture']}), only for {', '.join(architectures)}",
        "install a build of torch for this card's generation",
    )


def _generation(architecture: str) -> tuple[int, int]:
    """Return (9, 0) for `sm_90` and `sm_90a`."""
    digits = re.sub(r"\D", "", architecture)
    return int(digits[:-1]), int(digits[-1])
