"""The table of checks, and the one way in which they are run."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sglk.backends.finding import Finding, warn
from sglk.doctor import (
    backends,
    devices,
    host,
    interpreter,
    offered_plugins,
    packages,
    pcie,
    serving,
    torch_build,
)
from sglk.doctor.deployment import Deployment
from sglk.doctor.machine import Machine

MachineCheck = Callable[[Machine], Iterable[Finding]]
DeploymentCheck = Callable[[Machine, Deployment], Iterable[Finding]]

MACHINE_CHECKS: tuple[MachineCheck, ...] = (
    interpreter.check_python,
    packages.check_packages,
    interpreter.check_duplicates,
    interpreter.check_shadowing,
    interpreter.check_start_up_hooks,
    offered_plugins.check_plugins,
    pcie.check_pci_bus,
    pcie.check_links,
    pcie.check_mixed_chips,
    pcie.check_iommu,
    pcie.check_peers,
    pcie.check_numa,
    host.check_host_memory,
    host.check_unified_memory,
    host.check_clock,
    serving.check_working_folder,
)
"""Checks that need no configuration."""

DEPLOYMENT_CHECKS: tuple[DeploymentCheck, ...] = (
    torch_build.check_torch,
    backends.check_backends,
    devices.check_devices,
    devices.check_visible_devices,
    devices.check_cuda_home,
    host.check_processor,
    serving.check_port,
    serving.check_open_files,
    serving.check_shared_memory,
    serving.check_weights,
    serving.check_profile,
    serving.check_configuration,
)
"""Checks of this machine for one deployment."""

_WORKERS = 4
"""Most of the time goes into child processes that import torch."""


def examine(machine: Machine, deployment: Deployment | None) -> list[Finding]:
    """Run every check and return what they found, in the order of the tables.

    Without a deployment only the machine is looked at. A check that fails is itself a finding.
    """
    jobs = [(_name(check), partial(check, machine)) for check in MACHINE_CHECKS]
    if deployment is not None:
        jobs += [(_name(check), partial(check, machine, deployment)) for check in DEPLOYMENT_CHECKS]
    with ThreadPoolExecutor(_WORKERS) as pool:
        return [finding for findings in pool.map(findings_of, *zip(*jobs, strict=True)) for finding in findings]


def findings_of(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run one check to its end; what it raises on the way is the last finding."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    # A machine in a state that nobody thought of must not hide what the other checks find.
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        findings.append(warn(name, f"this check failed: {text}", "please report it; the other checks went on"))
    return findings


def _name(check: Callable[..., object]) -> str:
    return check.__name__.removeprefix("check_").replace("_", " ")
