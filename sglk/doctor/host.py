"""Checks of the machine's own memory and processor."""

from collections.abc import Iterator

from sglk.backends.finding import Finding, ok, warn
from sglk.backends.host_memory import host_memory
from sglk.doctor.deployment import Deployment
from sglk.doctor.machine import Machine
from sglk.doctor.pci import accelerators

_GIB = 2**30
_LITTLE = 2 * _GIB
"""Free memory below which loading a checkpoint pushes other programs out."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FAST_HALVES = ("amx_bf16", "avx512_bf16")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")
_QUOTAS = (
    ("sys/fs/cgroup/cpu.max", None),
    ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""File with the quota, and with the period where that is apart: cgroup v2 and v1."""


def check_host_memory(machine: Machine) -> Iterator[Finding]:
    """Look at free memory, the container's limit, swap, huge pages and how the kernel promises memory."""
    known = _meminfo(machine)
    if "MemTotal" not in known or "MemAvailable" not in known:
        yield ok("memory", "/proc/meminfo cannot be read, so memory is not checked")
        return
    memory = host_memory(machine.root)
    limit = f", the container's limit of {known['MemTotal'] / _GIB:.1f}" if memory.total < known["MemTotal"] else ""
    sizes = f"{memory.free / _GIB:.1f} of {memory.total / _GIB:.1f} GiB free{limit}"
    if memory.free < _LITTLE:
        yield warn("memory", sizes, "end other programs, or raise the container's limit, before weights are loaded")
    else:
        yield ok("memory", sizes)
    yield from _swap(known)
    yield from _huge_pages(known)
    if machine.number("proc/sys/vm/overcommit_memory") == 2:
        yield warn(
            "overcommit",
            "vm.overcommit_memory=2: the kernel refuses memory that is only reserved, as mapped weights are",
            "sysctl vm.overcommit_memory=0",
        )


def _meminfo(machine: Machine) -> dict[str, int]:
    """Return /proc/meminfo in bytes; its counters of pages as they are."""
    found = {}
    for line in (machine.text("proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def _swap(known: dict[str, int]) -> Iterator[Finding]:
    used = known.get("SwapTotal", 0) - known.get("SwapFree", 0)
    if used > _GIB:
        yield warn("swap", f"{used / _GIB:.1f} GiB are swapped out", "end other programs, or swapoff -a once they fit")


def _huge_pages(known: dict[str, int]) -> Iterator[Finding]:
    idle = known.get("HugePages_Free", 0) * known.get("Hugepagesize", 0)
    if idle > known["MemTotal"] // 10:
        yield warn(
            "huge pages",
            f"{idle / _GIB:.1f} GiB are reserved as huge pages that nobody uses, and lost to all else",
            "sysctl vm.nr_hugepages=0, unless a program of yours asks for them",
        )


def check_unified_memory(machine: Machine) -> Iterator[Finding]:
    """Look at what moves pages between host and devices behind the programs' backs."""
    found = accelerators(machine)
    if not found:
        return
    settings = [f"{name} = {value}" for name, value in _unified_settings(machine)]
    if settings:
        yield ok("unified memory", "; ".join(settings))
    migrates = machine.text("sys/module/nvidia_uvm/parameters/uvm_disable_hmm") == "N"
    if migrates and len({device.maker for device in found}) > 1:
        yield warn(
            "unified memory",
            "nvidia_uvm moves host pages by itself (HMM), beside cards of another vendor whose driver pins them",
            "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d",
        )
    if machine.number("proc/sys/kernel/numa_balancing"):
        yield warn(
            "unified memory",
            "kernel.numa_balancing moves host pages that cards are reading",
            "sysctl kernel.numa_balancing=0",
        )


def _unified_settings(machine: Machine) -> Iterator[tuple[str, str]]:
    for name in ("HSA_XNACK", "CUDA_MANAGED_FORCE_DEVICE_ALLOC", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if name in machine.environment:
            yield name, machine.environment[name]
    for module, parameter in (("nvidia_uvm", "uvm_disable_hmm"), ("amdgpu", "noretry")):
        value = machine.text(f"sys/module/{module}/parameters/{parameter}")
        if value is not None:
            yield f"{module} {parameter}", value


def check_processor(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Look at the processor's instructions and the threads that libraries will use."""
    on_cpu = "cpu" in deployment.backends
    flags = _cpu_flags(machine)
    fast = [name for name in (*_FAST_HALVES, "avx512f", "avx2") if name in flags]
    yield ok("processor", f"{machine.cores} cores for this process, with {', '.join(fast) or 'no wide instructions'}")
    halves = deployment.config.runtime.dtype in ("bf16", "fp16")
    if on_cpu and halves and flags and not flags & set(_FAST_HALVES):
        yield warn(
            "processor",
            f"runtime.dtype={deployment.config.runtime.dtype}, but this processor has neither AMX nor AVX512-BF16",
            "runtime.dtype=fp32 is several times faster here",
        )
    yield from _quota(machine)
    for name in _THREADS:
        if name in machine.environment:
            yield _threads(machine, name, machine.environment[name], on_cpu)


def _cpu_flags(machine: Machine) -> set[str]:
    lines = (machine.text("proc/cpuinfo") or "").splitlines()
    return next(
        (set(line.partition(":")[2].split()) for line in lines if line.startswith(("flags", "Features"))), set()
    )


def _quota(machine: Machine) -> Iterator[Finding]:
    allowed = _quota_cores(machine)
    if allowed is not None and allowed < machine.cores:
        threads = max(1, int(allowed))
        yield warn(
            "processor",
            f"the container may use {allowed:g} of {machine.cores} cores' time: more threads stall each other",
            f"runtime.num_threads={threads} on chip=cpu, OMP_NUM_THREADS={threads} on others",
        )


def _quota_cores(machine: Machine) -> float | None:
    for quota_file, period_file in _QUOTAS:
        words = (machine.text(quota_file) or "").split()
        if period_file is not None:
            words += (machine.text(period_file) or "").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            return int(words[0]) / int(words[1])
    return None


def _threads(machine: Machine, name: str, value: str, on_cpu: bool) -> Finding:
    count = int(value) if value.isdigit() else 0
    if count < 1:
        return warn("threads", f"{name}={value} is no number of threads", f"unset it, or {name}={machine.cores}")
    if count > machine.cores:
        return warn("threads", f"{name}={count} on {machine.cores} cores", f"{name}={machine.cores}, or unset it")
    if on_cpu and count < machine.cores:
        return warn(
            "threads",
            f"{name}={count} leaves {machine.cores - count} of {machine.cores} cores idle",
            f"unset it, or set runtime.num_threads={machine.cores}",
        )
    return ok("threads", f"{name}={count} on {machine.cores} cores")


def check_clock(machine: Machine) -> Iterator[Finding]:
    """Look at what the kernel reads the time from: each step of the engine asks several times."""
    source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_CLOCKS:
        yield warn("clock", f"the kernel's clock source is {source}, which is slow to read", "boot with tsc=reliable")
    elif source is not None:
        yield ok("clock", f"clock source {source}")
