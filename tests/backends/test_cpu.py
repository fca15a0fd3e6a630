import resource
from pathlib import Path
from threading import Thread

import pytest
import torch

from sglk.backends import reference
from sglk.backends.constraints import Trait
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels import large_pages
from sglk.backends.dtypes import compute_dtype, dtype_name, kv_cache_dtype, torch_dtype
from sglk.backends.host_memory import host_memory
from sglk.config.compose import compose
from sglk.config.quantization import schemes_of
from sglk.errors import CapacityError, ConfigError

MEMINFO = "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\nHugePages_Total:   0\n"


def test_work_runs_without_autograd_on_the_asked_number_of_threads() -> None:
    backend = CpuBackend(num_threads=1)
    seen: list[tuple[int, bool]] = []

    def work() -> None:
        seen.append((torch.get_num_threads(), torch.is_inference_mode_enabled()))

    backend.execute_runnable(work)
    thread = Thread(target=backend.execute_runnable, args=(work,))
    thread.start()
    thread.join()
    assert seen == [(1, True), (1, True)]


def test_torch_keeps_one_thread_where_kernels_do_the_work() -> None:
    def threads_of(backend: CpuBackend, **traits: Trait) -> int:
        backend.ops.select(reference.attention_decode, dtype="fp32", kv_dtype="fp32", **traits)
        return backend.execute_runnable(torch.get_num_threads)

    kept = CpuBackend(num_threads=3)
    assert kept.execute_runnable(torch.get_num_threads) == 3, "nobody works yet"
    before = torch.get_num_threads()
    assert threads_of(kept, head_dim=64) == 1
    assert torch.get_num_threads() == before
    assert threads_of(kept, head_dim=4096) == 3, "no kernel for heads so wide"
    assert threads_of(CpuBackend(num_threads=3, kernels="none"), head_dim=64) == 3


def test_copy_converts_and_free_gives_the_memory_back() -> None:
    backend = CpuBackend(num_threads=1)
    tensor = backend.allocate((2, 3), torch.bfloat16)
    backend.copy(torch.full((2, 3), 1.5), tensor)
    backend.synchronize()
    assert tensor.tolist() == [[1.5] * 3] * 2
    backend.free(tensor)
    assert tensor.untyped_storage().nbytes() == 0


def test_more_memory_than_there_is_names_both_numbers() -> None:
    backend = CpuBackend(num_threads=1)
    with pytest.raises(CapacityError, match=str(2**60)):
        backend.allocate((2**58,), torch.float32)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing says how much memory is mapped")
def test_a_limit_of_the_process_is_told_as_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_chunk", None)
    backend, before = CpuBackend(num_threads=1), resource.getrlimit(resource.RLIMIT_AS)
    backend.allocate((1,), torch.float32)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**25, before[1]))
    try:
        zeros = large_pages.zeros((2**20,), torch.int8)
        for allocate in (backend.allocate, backend.allocate_cache):
            with pytest.raises(CapacityError, match=rf"no {2**28} bytes more"):
                allocate((2**26,), torch.float32)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert not zeros.any()


def test_facts_of_the_machine_are_sane() -> None:
    backend = CpuBackend(num_threads=1)
    memory = backend.memory_info()
    assert 0 < memory.free <= memory.total
    assert 0 < backend.peak_memory_bytes() <= memory.total
    assert backend.device_info().name


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="'numa'"):
        CpuBackend(numa=True)
    with pytest.raises(ConfigError, match="kernels='fast'; choose one of native, portable, none"):
        CpuBackend(kernels="fast")  # type: ignore[arg-type]


def test_own_kernels_can_be_left_out() -> None:
    choice = CpuBackend(kernels="none").ops.select(reference.linear, dtype="fp32", in_features=8, out_features=8).choice
    assert (choice.provider, choice.fallback) == ("cpu", False)


def test_machine_memory_without_a_container(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", MEMINFO)
    memory = host_memory(tmp_path)
    assert (memory.total, memory.free) == (16_000_000 * 1024, 8_000_000 * 1024)


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "cache"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_container_limit_counts_and_file_cache_is_free(
    tmp_path: Path, folder: str, limit: str, usage: str, cache: str
) -> None:
    write(tmp_path / "proc/meminfo", MEMINFO)
    write(tmp_path / folder / limit, "1000000\n")
    write(tmp_path / folder / usage, "700000\n")
    write(tmp_path / folder / "memory.stat", f"anon 5\n{cache} 200000\n")
    memory = host_memory(tmp_path)
    assert (memory.total, memory.free) == (1_000_000, 500_000)


def test_an_unlimited_container_is_the_machine(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", MEMINFO)
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "5\n")
    assert host_memory(tmp_path).total == 16_000_000 * 1024


def test_dtypes_auto_declared_and_refused() -> None:
    capabilities = CpuBackend.capabilities
    assert compute_dtype("auto", capabilities) is torch.float32
    assert kv_cache_dtype("auto", torch.bfloat16, capabilities) is torch.bfloat16
    assert kv_cache_dtype("fp16", torch.float32, capabilities) is torch.float16
    with pytest.raises(ConfigError, match=r"kv_cache_dtype=fp8 is .*one of bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, int8"):
        kv_cache_dtype("fp8", torch.float32, capabilities)
    with pytest.raises(ConfigError, match="unknown dtype 'fp7'"):
        torch_dtype("fp7")
    assert dtype_name(torch.bfloat16) == "bf16"


def test_the_chip_declares_what_the_backend_does() -> None:
    chip, capabilities = compose("serve", ["chip=cpu"]).config.chip, CpuBackend.capabilities
    assert set(chip.dtypes) == capabilities.dtypes
    assert set(chip.kv_cache_dtypes) == capabilities.kv_cache_dtypes
    assert schemes_of(chip.quantization) == capabilities.quantization


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
