"""The sim backend by itself; `tests/engine/test_simulated.py` has an engine on it."""

import gc
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from sglk.backends import moe_ops, reference
from sglk.backends.base import MemoryInfo
from sglk.backends.constraints import Trait
from sglk.backends.ops import Denial
from sglk.backends.sim import SimBackend
from sglk.backends.sim_clock import DeviceClock
from sglk.backends.sim_rates import FALLBACK_KERNELS, FALLBACK_TRAFFIC, Efficiency, Link, rates_of
from sglk.backends.work import Work
from sglk.config.schema import ChipConfig
from sglk.errors import BackendError, CapacityError, ConfigError
from sglk.operators.cases import OPS, matrix
from sglk.operators.comparison import mismatch

MIB = 2**20


def chip(**changes: object) -> ChipConfig:
    figures: dict[str, object] = {
        "name": "imaginary",
        "title": "Imaginary 1",
        "vendor": "nobody",
        "backend": "none",
        "memory_gib": 1.0,
        "bandwidth_gb_s": 1000.0,
        "interconnect_gb_s": 100.0,
        "peak_tflops": {"bf16": 100.0, "int8": 200.0},
        "dtypes": ["bf16", "fp16"],
        "kv_cache_dtypes": ["bf16", "int8"],
        "quantization": ["w8a8_int8", "awq", "fp8", "w8a16"],
    }
    return ChipConfig(**{**figures, **changes})  # type: ignore[arg-type]


def sim(*, fallback: str = "warn", deny: tuple[Denial, ...] = (), speed: float = 0, **changes: object) -> SimBackend:
    return SimBackend(chip=chip(**changes), fallback=fallback, deny=deny, speed=speed)  # type: ignore[arg-type]


class Time:
    """The host's time, which passes only when somebody waits or it is set forward."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def test_every_op_returns_what_the_reference_would_but_for_the_values() -> None:
    backend = sim()
    tried = set()
    for case in matrix(backend.capabilities):
        (offer,) = backend.ops.implementations(OPS[case.op])
        assert mismatch(case, offer, backend) is None, str(case)
        tried.add(case.op)
    assert tried == OPS.keys()
    assert backend.clock.busy_s > 0


def test_the_chip_s_file_says_what_the_device_can() -> None:
    capabilities = sim(page_sizes=[128]).capabilities
    assert capabilities.dtypes == {"bf16", "fp16"}
    assert capabilities.default_dtype == "bf16"
    assert capabilities.kv_cache_dtypes == {"bf16", "fp16", "int8"}
    assert capabilities.quantization == {"w8a8", "w4a16", "fp8", "w8a16"}
    assert capabilities.page_sizes == (128,)


def test_memory_is_the_chip_s_and_comes_back() -> None:
    backend = sim()
    total = backend.memory_info().total
    assert backend.memory_info() == MemoryInfo(2**30, 2**30)
    held = backend.allocate((600, MIB), torch.int8)
    figures = f"the simulated Imaginary 1 has {424 * MIB} of {total} bytes of memory free, {500 * MIB} were asked for"
    with pytest.raises(CapacityError, match=figures):
        backend.allocate((500, MIB), torch.int8)
    dropped = backend.allocate((200, MIB // 2), torch.bfloat16)
    view = dropped[100:]
    del dropped
    gc.collect()
    assert backend.memory_info().free == total - 800 * MIB
    del view
    gc.collect()
    backend.free(held)
    backend.free(held)
    assert backend.memory_info().free == total
    assert backend.peak_memory_bytes() == 800 * MIB


def test_copies_take_shapes_seriously_and_bring_zeros_to_the_host() -> None:
    backend = sim()
    device, host = backend.allocate((2, 3), torch.float32), torch.ones(2, 3)
    backend.copy(host, device)
    backend.copy(device, host)
    assert host.eq(0).all()
    with pytest.raises(RuntimeError, match="size of tensor"):
        backend.copy(torch.ones(4, 3), device)


def test_work_queues_up_beside_the_host(time: Time) -> None:
    clock = DeviceClock(now=time.now, sleep=time.sleep)
    clock.charge(2.0)
    time.now_s += 1.5  # the host does something else meanwhile
    clock.charge(1.0)
    clock.wait()
    assert time.now_s == pytest.approx(103)
    clock.wait()
    assert time.now_s == pytest.approx(103)
    time.now_s += 10  # the device idles
    clock.charge(0.5)
    clock.wait()
    assert time.now_s == pytest.approx(113.5)
    assert clock.busy_s == pytest.approx(3.5)


def test_a_host_that_is_slower_than_the_device_never_waits(time: Time) -> None:
    clock = DeviceClock(now=time.now, sleep=time.sleep)
    clock.charge(1.0)
    time.now_s += 5
    clock.wait()
    assert time.now_s == pytest.approx(105)


@pytest.mark.parametrize(("speed", "waited"), [(1.0, 8.0), (4.0, 2.0), (0.0, 0.0)])
def test_the_device_s_time_can_pass_faster_or_not_at_all(time: Time, speed: float, waited: float) -> None:
    clock = DeviceClock(speed, now=time.now, sleep=time.sleep)
    clock.charge(8.0)
    clock.wait()
    assert time.now_s == pytest.approx(100 + waited)
    assert clock.busy_s == 8.0


def test_an_op_takes_a_launch_and_the_longer_of_moving_and_calculating() -> None:
    rates = rates_of(chip(), Efficiency(bandwidth=0.5, compute=0.5, launch_us=3))
    assert rates.op_s(Work(1e9, 1e9, "bf16")) == pytest.approx(3e-6 + 1e9 / 500e9)
    assert rates.op_s(Work(1e12, 1e3, "bf16")) == pytest.approx(3e-6 + 1e12 / 50e12)
    assert rates.op_s(Work(1e12, 1e3, "int8")) == pytest.approx(3e-6 + 1e12 / 100e12)
    # No rate is stated for fp8: it is no faster than the slowest.
    assert rates.op_s(Work(1e12, 1e3, "fp8")) == pytest.approx(3e-6 + 1e12 / 50e12)
    assert rates.fallback_s(Work(0, 1e9, "bf16")) == pytest.approx(
        FALLBACK_KERNELS * 3e-6 + FALLBACK_TRAFFIC * 1e9 / 500e9
    )


def test_a_sum_over_ranks_takes_hops_and_the_link() -> None:
    link = Link(1e11)
    assert link.allreduce_s(10**9, 2) == pytest.approx(2 * 8e-6 + 1e9 / 1e11)
    assert link.allreduce_s(10**9, 4) == pytest.approx(6 * 8e-6 + 1.5e9 / 1e11)
    backend = sim()
    group = backend.process_group(HashStore(), 0, 2, timedelta(seconds=1))
    group.allreduce([backend.allocate((1000, 1000), torch.bfloat16)]).wait()
    assert backend.clock.busy_s == pytest.approx(backend.rates.link.allreduce_s(2_000_000, 2))


def test_shapes_that_the_chip_does_not_take_run_the_reference_s_time() -> None:
    limits = {"run_experts": ["experts % 4 == 0"], "attention_decode": ["head_dim in {64, 128}", "kv_heads <= 8"]}
    backend = sim(op_limits=limits)
    numbers: dict[str, Trait] = {"top_k": 2, "hidden": 64, "width": 96, "dtype": "bf16"}
    fitting = backend.ops.select(moe_ops.run_experts, experts=8, **numbers)
    misfit = backend.ops.select(moe_ops.run_experts, experts=6, **numbers)
    assert not fitting.choice.fallback
    assert (misfit.choice.fallback, misfit.choice.reason) == (True, "sim: experts % 4 == 0")
    attention: dict[str, Trait] = {
        "heads": 8,
        "kv_heads": 8,
        "kv_dtype": "bf16",
        "dtype": "bf16",
        "page_size": 128,
        "window": 0,
    }
    odd_heads = backend.ops.select(reference.attention_decode, head_dim=80, **attention)
    assert odd_heads.choice.reason == "sim: head_dim in {64, 128}"

    def took(run: object, experts: int) -> float:
        before_s = backend.clock.busy_s
        gate_up, down = (
            backend.allocate((experts, 192, 64), torch.bfloat16),
            backend.allocate((experts, 64, 96), torch.bfloat16),
        )
        weights, ids = backend.allocate((5, 2), torch.float32), backend.allocate((5, 2), torch.int64)
        run(backend.allocate((5, 64), torch.bfloat16), gate_up, down, weights, ids)  # type: ignore[operator]
        return backend.clock.busy_s - before_s

    assert took(misfit, 6) > 3 * took(fitting, 8)


def test_fallback_can_be_forbidden_and_implementations_denied() -> None:
    denied = Denial("greedy", None, "returns the wrong id")
    assert sim(deny=(denied,)).ops.select(OPS["greedy"], vocab_size=10, dtype="bf16").choice.fallback
    with pytest.raises(BackendError, match=r"op 'greedy' .* returns the wrong id"):
        sim(deny=(denied,), fallback="forbid").ops.select(OPS["greedy"], vocab_size=10, dtype="bf16")


def test_what_the_file_lacks_is_assumed_and_said(caplog: pytest.LogCaptureFixture) -> None:
    unknown = sim(memory_gib=None, bandwidth_gb_s=None, peak_tflops={}, dtypes=[], kv_cache_dtypes=[])
    assert "assuming chip.memory_gib=16.0, chip.bandwidth_gb_s=100.0" in caplog.text
    assert "chip.peak_tflops=5.0" in unknown.device_info().details["assumed"]
    assert unknown.capabilities.default_dtype in unknown.capabilities.kv_cache_dtypes
    assert "assumed" not in sim().device_info().details


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sped": 1}, "no option 'sped'; did you mean 'speed'? it takes speed, "),
        ({"speed": "fast"}, "backend.options.speed='fast' is not a number from 0 up"),
        ({"speed": -1}, "backend.options.speed=-1 is not a number from 0 up"),
        ({"speed": True}, "backend.options.speed=True is not a number"),
        ({"speed": float("nan")}, "backend.options.speed=nan is not a number"),
        ({"bandwidth_efficiency": 0}, "backend.options.bandwidth_efficiency=0 is not a share above 0 and up to 1"),
        ({"answer_tokens": 0.5}, "backend.options.answer_tokens=0.5 is not a whole number from 1 up"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SimBackend(chip=chip(), **options)
    assert message in str(caught.value)


def test_a_chip_must_be_told() -> None:
    with pytest.raises(BackendError, match="was told none"):
        SimBackend()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"run_expert": ["experts % 4 == 0"]}, "op_limits of chip 'imaginary' names no op 'run_expert'; did you mean"),
        (
            {"run_experts": ["experts must be even"]},
            "op_limits.run_experts of chip 'imaginary': 'experts must be even' is",
        ),
    ],
)
def test_limits_in_other_words_are_refused(limits: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sim(op_limits=limits)
    assert message in str(caught.value)
