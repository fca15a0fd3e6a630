"""Device nodes, drivers and variables of the vendors, on made-up machines."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sglk.backends.finding import Finding
from sglk.backends.vendors import VENDORS
from sglk.doctor.devices import check_cuda_home, check_devices, check_visible_devices, driver_version
from tests.doctor.deployments import typed
from tests.doctor.trees import ACCELERATOR, KUNLUN, NVIDIA, Tree

PORT = "pci0000:00/0000:00:01.0"
KUNLUN_NODES = ("xpu0", "xpu1", "xpuctrl")


def of(backend: str, findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.why.startswith((f"{backend}:", backend.upper()))]


def devices_of(backend: str, tree: Tree, *words: str) -> list[Finding]:
    return of(backend, list(check_devices(tree.machine(), typed(*words))))


def test_without_cards_a_chosen_chip_fails_and_the_others_are_told(tree: Tree) -> None:
    (tree.root / "sys/bus/pci/devices").mkdir(parents=True)
    findings = list(check_devices(tree.machine(), typed("chip=kunlun")))
    assert [finding.status for finding in findings] == ["ok", "ok", "fail", "ok"]
    assert (
        findings[0].why == "cuda: not available (no NVIDIA card is on the PCI bus, and there is no /dev/nvidia[0-9]*)"
    )
    assert "--device /dev/xpu0" in findings[2].todo
    assert "backend=sim" in findings[2].todo


def test_a_simulated_chip_needs_no_card(tree: Tree) -> None:
    findings = check_devices(tree.machine(), typed("chip=kunlun", "backend=sim"))
    assert {finding.status for finding in findings} == {"ok"}


def test_every_chip_of_the_groups_is_needed(tree: Tree) -> None:
    wanted = typed("chip=cuda", "groups='cuda:0,kunlun:0;cuda:1'")
    failing = [finding.why[:6] for finding in check_devices(tree.machine(), wanted) if finding.status == "fail"]
    assert failing == ["cuda: ", "kunlun"]


def test_cards_and_nodes(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", KUNLUN, ACCELERATOR)
    for name in KUNLUN_NODES:
        tree.node(name)
    tree.write("sys/module/kunlun/version", "5.0.21.26\n")
    (finding,) = devices_of("kunlun", tree, "chip=kunlun")
    assert (finding.status, finding.why) == (
        "ok",
        "kunlun: /dev/xpu0, /dev/xpu1 (1 on the PCI bus, driver 5.0.21.26)",
    )


@pytest.mark.parametrize(("driver", "reason"), [(None, "the driver is not loaded"), ("5.0.21", "not passed into this")])
def test_a_card_without_node(driver: str | None, reason: str, tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", KUNLUN, ACCELERATOR)
    if driver:
        tree.write("sys/module/kunlun/version", driver)
    (finding,) = devices_of("kunlun", tree, "chip=kunlun")
    assert finding.status == "fail"
    assert reason in finding.why


def test_a_container_without_sys_that_has_the_nodes(tree: Tree) -> None:
    for name in KUNLUN_NODES:
        tree.node(name)
    (finding,) = devices_of("kunlun", tree, "chip=kunlun")
    assert finding.status == "ok"
    assert "PCI" not in finding.why


def test_a_node_that_is_missing_beside_the_cards(tree: Tree) -> None:
    tree.node("xpu0")
    (finding,) = devices_of("kunlun", tree, "chip=kunlun")
    assert (finding.status, "no /dev/xpuctrl" in finding.why) == ("fail", True)
    (finding,) = devices_of("kunlun", tree, "chip=cpu")
    assert finding.status == "ok"


def test_a_node_that_is_closed_to_us(tree: Tree) -> None:
    for name in KUNLUN_NODES:
        tree.node(name)
    machine = replace(tree.machine(), accessible=lambda path: path.name != "xpu1")
    finding = of("kunlun", list(check_devices(machine, typed("chip=kunlun"))))[0]
    assert (finding.status, finding.why) == ("fail", "kunlun: no permission to use /dev/xpu1")
    assert "add the user to group" in finding.todo


def test_a_device_index_that_does_not_exist(tree: Tree) -> None:
    for name in KUNLUN_NODES:
        tree.node(name)
    found = check_devices(tree.machine(), typed("chip=kunlun", "groups=kunlun:4"))
    assert [finding.why for finding in found if finding.status == "fail"] == [
        "kunlun:4 in groups, but this machine has 2"
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1", "cuda:1 in groups, but CUDA_VISIBLE_DEVICES=1 leaves 1 of 2"),
        ("GPU-8932f937", "cuda:1 in groups, but CUDA_VISIBLE_DEVICES=GPU-8932f937 leaves 1 of 2"),
        ("0,7,1", "cuda:1 in groups, but CUDA_VISIBLE_DEVICES=0,7,1 leaves 1 of 2"),
        ("1,0", None),
    ],
)
def test_groups_that_name_devices_which_the_environment_hides(value: str, why: str | None, tree: Tree) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        tree.node(name)
    machine = tree.machine({"CUDA_VISIBLE_DEVICES": value})
    found = check_devices(machine, typed("chip=cuda", "groups='cuda:0;cuda:1'"))
    assert [finding.why for finding in found if finding.status == "fail"] == ([why] if why else [])


def test_a_display_of_another_maker_is_no_accelerator_of_amd(tree: Tree) -> None:
    (tree.root / "sys/bus/pci/devices").mkdir(parents=True)
    tree.node("dri/renderD128")
    (finding,) = devices_of("rocm", tree, "chip=cpu")
    assert (finding.status, finding.todo) == ("ok", "")
    assert finding.why == "rocm: not available (no AMD card is on the PCI bus, and there is no /dev/kfd)"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC version: gcc 12.2.0",
            "535.104.05",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build", "550.54.14"),
        ("nothing", None),
    ],
)
def test_driver_versions(text: str, version: str | None, tree: Tree) -> None:
    tree.write("proc/driver/nvidia/version", text)
    assert driver_version(tree.machine(), VENDORS[0]) == version


@pytest.mark.parametrize(
    ("value", "chip", "status", "part"),
    [
        ("", "cuda", "fail", "hides every device"),
        ("-1", "cuda", "fail", "hides every device"),
        ("", "cpu", "ok", "hides every device"),
        ("0,0", "cuda", "warn", "names 0 twice"),
        ("7", "cuda", "warn", "names device 7, of 2 here"),
        ("1,0", "cuda", "ok", "numbers these devices from 0 again"),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "cuda", "ok", "numbers these devices"),
    ],
)
def test_what_the_environment_hides(value: str, chip: str, status: str, part: str, tree: Tree) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        tree.node(name)
    machine = tree.machine({"CUDA_VISIBLE_DEVICES": value})
    (finding,) = check_visible_devices(machine, typed(f"chip={chip}"))
    assert finding.status == status
    assert part in finding.why


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES"])
def test_an_empty_variable_of_another_vendor_is_no_fault(variable: str, tree: Tree) -> None:
    (finding,) = check_visible_devices(tree.machine({variable: ""}), typed("chip=cpu"))
    assert (finding.check, finding.status) == (variable, "ok")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (None, "is not set"),
        ("", "is set but empty"),
        ("/nonexistent", "is no folder"),
        ("/empty", "holds no bin/nvcc"),
        ("/usr/local/cuda", "holds a compiler"),
    ],
)
def test_where_cuda_home_points(value: str | None, part: str, tree: Tree) -> None:
    (tree.root / "empty").mkdir()
    tree.write("usr/local/cuda/bin/nvcc", "")
    machine = tree.machine({} if value is None else {"CUDA_HOME": value})
    (on_cpu,) = check_cuda_home(machine, typed("chip=cpu"))
    (on_cuda,) = check_cuda_home(machine, typed("chip=cuda"))
    assert part in on_cpu.why
    assert part in on_cuda.why
    assert on_cpu.status == "ok"
    assert on_cuda.status == ("ok" if value in (None, "/usr/local/cuda") else "warn")


def test_nvidia_beside_the_chosen_chip(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA)
    (finding,) = devices_of("cuda", tree, "chip=kunlun")
    assert finding.status == "ok"
    assert "the driver is not loaded" in finding.why
