"""Checks of the plugins that drive the deployment's devices: that each loads, and fits what is installed."""

from collections.abc import Iterator, Mapping
from typing import Any

from sglk.backends.finding import Finding, fail, ok, warn
from sglk.backends.vendors import vendor_of_backend
from sglk.doctor.children import ask
from sglk.doctor.deployment import Deployment
from sglk.doctor.device_memory import check_device_memory
from sglk.doctor.devices import driver_version
from sglk.doctor.libraries import library_findings
from sglk.doctor.machine import Machine
from sglk.doctor.packages import check_ranges
from sglk.doctor.sentence import parted
from sglk.errors import RunError


def check_backends(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Load each backend in a child process, compare versions, load its libraries; then make the devices."""
    for name in deployment.backends:
        findings = list(_backend(machine, name, deployment.environment(name)))
        yield from findings
        # Without its libraries a plugin can only say once more what is missing.
        if not any(finding.status == "fail" for finding in findings):
            yield from check_device_memory(deployment, name)


def _backend(machine: Machine, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        answer = ask("backend_class", name, environment=environment)
    except RunError as error:
        yield fail("backend", f"backend {name!r} ends its process: {error}", "reinstall the plugin and its libraries")
        return
    if "error" in answer:
        why, todo = parted(answer["error"])
        yield fail("backend", why, todo or "`sglk plugins` lists what is found")
        return
    yield ok("backend", f"backend {name!r} loads from {answer['file']} ({_verified(answer)})")
    for finding in answer.get("findings", ()):
        yield Finding(**finding)
    for question, reason in answer["failed"].items():
        yield warn("backend", f"backend {name!r} cannot tell its {question}: {reason}", "tell the plugin's author")
    yield from _environment(machine, name, environment)
    ranges = answer.get("requires", {})
    yield from check_ranges(machine, name, ranges, _reported(machine, name, answer))
    yield from library_findings(machine, ranges)


def _environment(machine: Machine, name: str, wanted: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the variables that `sglk serve` sets for the plugin's libraries with those that are set already."""
    for variable, value in wanted.items():
        given = machine.environment.get(variable, value)
        if given != value:
            yield warn(
                "environment",
                f"{variable}={given} is set, backend {name!r} wants {value}",
                f"unset {variable}, unless you mean it",
            )
    if wanted:
        shown = " ".join(f"{variable}={value}" for variable, value in wanted.items())
        yield ok("environment", f"`sglk serve` sets, where they are not set: {shown}")


def _verified(answer: dict[str, Any]) -> str:
    hardware = answer.get("verified_on")
    return f"run on {hardware}" if hardware else "not verified on hardware"


def _reported(machine: Machine, backend: str, answer: dict[str, Any]) -> dict[str, str | None]:
    vendor = vendor_of_backend(backend)
    versions = {"driver": driver_version(machine, vendor) if vendor else None, "sdk": None}
    return {**versions, **answer.get("versions", {})}
