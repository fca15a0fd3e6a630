"""What the op seam costs: a call through the registry against the same call without it, and the NaN guard in prefill.

Calls of both kinds alternate in rounds of 1000, so that a busy moment of the machine falls on both.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.result import Row, main
from sglk.backends import cpu_ops, reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import Op
from sglk.config.compose import compose
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.models.loader import load_model

BAR_US = 1.0
CALLS = 1000
PROMPT = 256
PAGE = 16


def measure(quick: bool) -> list[Row]:
    """Time an op that does nothing, a real one on one row, and a prefill."""
    rounds = 50 if quick else 500
    x_T2F, weight_E = torch.randn(1, 128), torch.ones(128)
    calls: dict[str, tuple[Op[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
        "an op that does nothing": (reference.rope, lambda x, cos, sin: x, (x_T2F, None, None)),
        "silu_and_mul of one row": (reference.silu_and_mul, cpu_ops.silu_and_mul, (x_T2F,)),
        "rms_norm of one row": (reference.rms_norm, cpu_ops.rms_norm, (x_T2F, weight_E, 1e-5)),
    }
    rows = []
    for name, (op, function, arguments) in calls.items():
        backend = CpuBackend(num_threads=1)
        backend.ops.register(op, "measured", function)
        bound = backend.ops.select(op, size=128, dtype="fp32")
        assert bound.choice.provider == "measured"
        direct_us, bound_us = in_turns(function, bound, arguments, rounds)
        rows.append(Row(f"{name}, called directly", direct_us, "us"))
        rows.append(Row(f"{name}, more through the registry", bound_us - direct_us, "us", "bar, at most", BAR_US))
    return [*rows, *guard_rows(3 if quick else 9)]


def in_turns(
    first: Callable[..., Any], second: Callable[..., Any], arguments: tuple[Any, ...], rounds: int
) -> tuple[float, float]:
    """Return the median time of a call of each, in microseconds."""
    times: tuple[list[float], list[float]] = [], []
    with torch.inference_mode():
        for _ in range(rounds):
            for function, taken in zip((first, second), times, strict=True):
                start = time.thread_time()
                for _ in range(CALLS):
                    function(*arguments)
                taken.append((time.thread_time() - start) / CALLS * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


def guard_rows(rounds: int) -> list[Row]:
    """Return the time of a prompt chunk that yields no token, with the guard and without."""
    guarded, plain = runner(nan_guard=True), runner(nan_guard=False)
    row = BatchRow("a", list(range(PROMPT)), 0, range(PROMPT // PAGE), SamplingParams(), 0, 0, samples=False)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for one, taken in zip((plain, guarded), times, strict=True):
            start = time.thread_time()
            one.run(Batch([row], 1))
            taken.append(time.thread_time() - start)
    plain_s, guarded_s = (statistics.median(taken) for taken in times)
    name = f"smollm2, chunk of {PROMPT} tokens"
    return [Row(f"{name}, nan_guard=true", guarded_s * 1000, "ms", "nan_guard=false", plain_s * 1000)]


def runner(nan_guard: bool) -> ModelRunner:
    """Return a runner of a model of real size with random weights."""
    runtime = RuntimeConfig(load_format="dummy", nan_guard=nan_guard)
    model = compose("serve", ["model=smollm2", "profiles=none"]).config.model
    backend = CpuBackend(num_threads=1)
    made = ModelRunner(load_model(model, runtime, backend).model, backend, runtime)
    made.allocate_kv(PROMPT // PAGE, PAGE)
    return made


if __name__ == "__main__":
    raise SystemExit(main("seam_cost", measure, ("torch",)))
