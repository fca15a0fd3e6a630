"""Checks as a whole: none of them is stopped by what it finds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sglk.backends.finding import Finding, ok
from sglk.doctor.checks import DEPLOYMENT_CHECKS, MACHINE_CHECKS, findings_of
from tests.doctor.deployments import typed
from tests.doctor.trees import GPU_3D, NVIDIA, Tree

IN_CHILDREN = ("check_plugins", "check_torch", "check_backends")


def test_a_check_that_fails_is_a_finding_and_keeps_what_it_found() -> None:
    def check() -> Iterator[Finding]:
        yield ok("first", "fine")
        raise ZeroDivisionError("division\nby zero")

    first, failure = findings_of("made up", check)
    assert first == ok("first", "fine")
    assert (failure.check, failure.status) == ("made up", "warn")
    assert failure.why == "this check failed: ZeroDivisionError: division by zero"


def nothing(tree: Tree) -> None:
    """Leave the tree empty."""


def files_in_place_of_folders(tree: Tree) -> None:
    for name in ("sys", "proc", "dev"):
        tree.write(name, "")


def folders_in_place_of_files(tree: Tree) -> None:
    for path in ("proc/meminfo", "proc/cpuinfo", "sys/fs/cgroup/cpu.max", "proc/driver/nvidia/version"):
        (tree.root / path).mkdir(parents=True)
    for name in ("vendor", "class", "max_link_width"):
        (tree.root / "sys/bus/pci/devices/0000:01:00.0" / name).mkdir(parents=True)


def noise(tree: Tree) -> None:
    tree.card("pci0000:00/0000:01:00.0", NVIDIA, GPU_3D)
    rubbish = bytes(range(256))
    for path in ("proc/meminfo", "proc/cpuinfo", "proc/sys/vm/overcommit_memory", "sys/fs/cgroup/cpu.max"):
        tree.write(path, rubbish)
    for name in ("numa_node", "max_link_width", "current_link_speed", "config"):
        tree.write(f"sys/devices/pci0000:00/0000:01:00.0/{name}", rubbish)


@pytest.mark.parametrize("build", [nothing, files_in_place_of_folders, folders_in_place_of_files, noise])
def test_no_state_of_a_machine_stops_a_check(build: object, tree: Tree, tmp_path: Path) -> None:
    assert callable(build)
    build(tree)
    environment = {"CUDA_HOME": "\n", "CUDA_VISIBLE_DEVICES": "a,,", "OMP_NUM_THREADS": "", "HF_HOME": "~nobody/x"}
    machine = replace(tree.machine(environment), search=[str(tmp_path / "gone"), "", __file__])
    wanted = typed("chip=cuda", "model=qwen7b", "runtime.tp_size=2")
    for check in MACHINE_CHECKS:
        if check.__name__ not in IN_CHILDREN:
            assert all(isinstance(finding, Finding) for finding in check(machine))
    for deployment_check in DEPLOYMENT_CHECKS:
        if deployment_check.__name__ not in IN_CHILDREN:
            assert all(isinstance(finding, Finding) for finding in deployment_check(machine, wanted))
