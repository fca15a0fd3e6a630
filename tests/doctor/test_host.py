"""Memory, processor and clock of made-up machines."""

import pytest

from sglk.backends.finding import Finding
from sglk.doctor.host import check_clock, check_host_memory, check_processor, check_unified_memory
from tests.doctor.deployments import typed
from tests.doctor.trees import ACCELERATOR, KUNLUN, NVIDIA, Tree

GIB_KB = 1 << 20


def meminfo(tree: Tree, **more: int) -> None:
    values = {"MemTotal": 64 * GIB_KB, "MemAvailable": 48 * GIB_KB, **more}
    lines = [f"{key}: {value}" + ("" if key.startswith("HugePages_") else " kB") for key, value in values.items()]
    tree.write("proc/meminfo", "\n".join(lines) + "\n")


def warnings(tree: Tree) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_host_memory(tree.machine()) if finding.status != "ok"}


def test_enough_memory(tree: Tree) -> None:
    meminfo(tree)
    (finding,) = check_host_memory(tree.machine())
    assert (finding.status, finding.why) == ("ok", "48.0 of 64.0 GiB free")


@pytest.mark.parametrize("folder", ["sys/fs/cgroup", "sys/fs/cgroup/memory"])
def test_the_limit_of_the_container(folder: str, tree: Tree) -> None:
    meminfo(tree)
    names = (
        ("memory.max", "memory.current")
        if folder.endswith("cgroup")
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    tree.write(f"{folder}/{names[0]}", str(4 << 30))
    tree.write(f"{folder}/{names[1]}", str(3 << 30))
    assert warnings(tree)["memory"].why == "1.0 of 4.0 GiB free, the container's limit of 64.0"


def test_swap_huge_pages_and_overcommit(tree: Tree) -> None:
    meminfo(tree, SwapTotal=8 * GIB_KB, SwapFree=5 * GIB_KB, HugePages_Free=8192, Hugepagesize=2048)
    tree.write("proc/sys/vm/overcommit_memory", "2\n")
    found = warnings(tree)
    assert found["swap"].why == "3.0 GiB are swapped out"
    assert found["huge pages"].why.startswith("16.0 GiB are reserved")
    assert found["overcommit"].todo == "sysctl vm.overcommit_memory=0"


def test_memory_that_cannot_be_asked(tree: Tree) -> None:
    (finding,) = check_host_memory(tree.machine())
    assert "cannot be read" in finding.why
    tree.write("proc/meminfo", "garbage\nMemTotal: lots\n")
    (finding,) = check_host_memory(tree.machine())
    assert "cannot be read" in finding.why


def test_pages_that_move_beside_another_vendor(tree: Tree) -> None:
    tree.card("pci0000:00/0000:01:00.0", NVIDIA)
    tree.write("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n")
    tree.write("proc/sys/kernel/numa_balancing", "1\n")
    alone = [finding.why for finding in check_unified_memory(tree.machine({"HSA_XNACK": "1"}))]
    assert alone == [
        "HSA_XNACK = 1; nvidia_uvm uvm_disable_hmm = N",
        "kernel.numa_balancing moves host pages that cards are reading",
    ]
    tree.card("pci0000:80/0000:81:00.0", KUNLUN, ACCELERATOR)
    mixed = [finding.why for finding in check_unified_memory(tree.machine()) if finding.status == "warn"]
    assert "(HMM), beside cards of another vendor" in mixed[0]


def processor(tree: Tree, *words: str, cores: int = 8, **environment: str) -> list[str]:
    findings = check_processor(tree.machine(environment, cores), typed(*words))
    return [f"{finding.why} -> {finding.todo}" for finding in findings if finding.status != "ok"]


def test_halves_on_a_processor_that_has_none(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor: 0\nflags\t\t: fpu avx2 avx512f\n")
    (line,) = processor(tree, "chip=cpu", "runtime.dtype=bf16")
    assert "neither AMX nor AVX512-BF16" in line
    assert processor(tree, "chip=cuda", "runtime.dtype=bf16") == []
    tree.write("proc/cpuinfo", "flags\t\t: avx512f avx512_bf16\n")
    assert processor(tree, "chip=cpu", "runtime.dtype=bf16") == []


@pytest.mark.parametrize(
    ("chip", "value", "part"),
    [
        ("cpu", "16", "OMP_NUM_THREADS=16 on 8 cores"),
        ("cuda", "16", "OMP_NUM_THREADS=16 on 8 cores"),
        ("cpu", "1", "leaves 7 of 8 cores idle"),
        ("cuda", "1", None),
        ("cpu", "8", None),
        ("cpu", "many", "is no number of threads"),
        ("cpu", "0", "is no number of threads"),
    ],
)
def test_threads_against_cores(chip: str, value: str, part: str | None, tree: Tree) -> None:
    found = processor(tree, f"chip={chip}", OMP_NUM_THREADS=value)
    assert [part in line for line in found] == ([] if part is None else [True])


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/cpu.max": "250000 100000"},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
    ],
)
def test_a_share_of_the_cores(files: dict[str, str], tree: Tree) -> None:
    for path, text in files.items():
        tree.write(path, text)
    (line,) = processor(tree, "chip=cpu")
    assert line.startswith("the container may use 2.5 of 8 cores' time")
    assert "runtime.num_threads=2 " in line


def test_no_share_is_no_warning(tree: Tree) -> None:
    tree.write("sys/fs/cgroup/cpu.max", "max 100000")
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert processor(tree, "chip=cpu") == []


@pytest.mark.parametrize(("source", "statuses"), [("tsc", ["ok"]), ("hpet", ["warn"]), (None, [])])
def test_clock_sources(source: str | None, statuses: list[str], tree: Tree) -> None:
    if source:
        tree.write("sys/devices/system/clocksource/clocksource0/current_clocksource", f"{source}\n")
    assert [finding.status for finding in check_clock(tree.machine())] == statuses
