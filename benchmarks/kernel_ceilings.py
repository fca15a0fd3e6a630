"""The cpu's kernels against what the machine can do in the same run: memory, multiplication, and attention's share.

Products with one token are held against a loop that reads the same bytes, products with 32 tokens against torch's
product of two square matrices, and attention of 8 rows with 4,096 tokens each against the step that it is part of. All
take turns in one process, best of the rounds. With one thread (`OMP_NUM_THREADS=1`) the processor's time counts, with
more the time that passes.
"""

import ctypes
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import Row, main
from sglk.backends import quantised_linear, reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels import library
from sglk.backends.cpu_kernels.compiler import find_compiler
from sglk.backends.few_bits import FewBits
from sglk.backends.ops import BoundOp
from sglk.backends.quantise import quantise_int8
from sglk.config.compose import compose
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.models.loader import load_model

SHAPES = ((1152, 896), (896, 896), (9728, 896), (896, 4864))
"""Outputs and inputs of the linear layers of a block of Qwen2.5-0.5B."""
LAYERS = 4
"""More than any cache holds."""
ATTENDING = {
    "smollm2": (),
    "Qwen2.5-0.5B, random weights": ("model=qwen0_5b", "runtime.load_format=dummy"),
    "Qwen2.5-0.5B, random weights, KV in bf16": (
        "model=qwen0_5b",
        "runtime.load_format=dummy",
        "runtime.kv_cache_dtype=bf16",
    ),
    "Qwen2.5-0.5B, random weights, KV in int8": (
        "model=qwen0_5b",
        "runtime.load_format=dummy",
        "runtime.kv_cache_dtype=int8",
    ),
}
"""Whose steps attention is held against, and what says so."""
READ_BARS = {"fp32": 0.85, "fp16": 0.85, "int8": 0.65}
PEAK_BAR = 0.75
ATTENTION_BAR = 0.25
AWAKE_S = 0.02
ROWS, CONTEXT, PAGE = 8, 4096, 16
SQUARE = 1024

Matrix = tuple[BoundOp[..., torch.Tensor], Any, int]
"""What multiplies, the weight as it wants it, and the inputs."""


ReadLoop = Callable[[int, int, int], int]
"""Takes where bytes are, how many, and the threads that read them."""


def measure(quick: bool) -> list[Row]:
    """Measure the three in turn."""
    rounds = 2 if quick else 15
    backend = CpuBackend()
    attending = [row for name, words in ATTENDING.items() for row in attention_rows(rounds, name, words)]
    return [*reading_rows(backend, rounds), *peak_rows(backend, rounds), *attending]


def reading_rows(backend: CpuBackend, rounds: int) -> Iterator[Row]:
    """Yield the rate at which products with one token take their weights."""
    read = _read_loop()
    for kind in ("fp32", "fp16", "int8", "4 bits"):
        matrices = [_matrix(backend, kind, *shape) for _ in range(LAYERS) for shape in SHAPES]
        weights = sum(packed.nbytes for _, packed, _ in matrices)
        parts = [part for _, packed, _ in matrices for part in _parts(packed)]
        read_s, product_s = best_in_turns(
            rounds,
            partial(_read, read, parts),
            _multiplying(backend, matrices, 1),
        )
        rate, ceiling = weights / product_s / 1e9, weights / read_s / 1e9
        bar = READ_BARS.get(kind)
        named = f"{bar:.0%} of a read loop, at least" if bar else "a read loop"
        yield Row(f"weights read for one token, {kind}", rate, "GB/s", named, (bar or 1) * ceiling)


def peak_rows(backend: CpuBackend, rounds: int) -> Iterator[Row]:
    """Yield the rate of products with 32 tokens."""
    square = torch.randn(SQUARE, SQUARE)
    for kind in ("fp32", "fp16", "4 bits"):
        matrices = [_matrix(backend, kind, *shape) for _ in range(LAYERS) for shape in SHAPES]
        work = sum(2 * 32 * outputs * inputs for outputs, inputs in SHAPES) * LAYERS
        peak_s, product_s = best_in_turns(
            rounds,
            lambda: square @ square,
            _multiplying(backend, matrices, 32),
        )
        rate, peak = work / product_s / 1e9, 2 * SQUARE**3 / peak_s / 1e9
        yield Row(f"product with 32 tokens, {kind}", rate, "GF/s", f"{PEAK_BAR:.0%} of peak, at least", PEAK_BAR * peak)


def attention_rows(rounds: int, name: str, words: Sequence[str]) -> Iterator[Row]:
    """Yield what part of a step of a model attention is; the past is what memory happens to hold."""
    # A recorded step is one call, of which nobody sees the parts.
    fixed = f"context_length={CONTEXT}", f"max_running_requests={ROWS}", "disable_cuda_graph=true"
    config = compose("serve", [*words, "profiles=none", *(f"runtime.{word}" for word in fixed)]).config
    backend = CpuBackend()
    loaded = load_model(config.model, config.runtime, backend)
    runner = ModelRunner(loaded.model, backend, config.runtime)
    pages = CONTEXT // PAGE
    runner.allocate_kv(ROWS * pages, PAGE)
    assert runner.pool is not None
    for pool in (*runner.pool.keys, *runner.pool.values):
        pool.normal_() if pool.is_floating_point() else pool.random_(-127, 128)
    for scales in runner.pool.scales:
        for each in () if scales is None else (scales.keys_SK, scales.values_SK):
            each.fill_(0.01)
    held = sum(pool.nbytes for pool in (*runner.pool.keys, *runner.pool.values))
    weights = loaded.model.weights_bytes
    sampling = SamplingParams(temperature=0.0)
    rows = [
        BatchRow(str(row), [7], CONTEXT - 1, range(row * pages, (row + 1) * pages), sampling, 0, 1, samples=True)
        for row in range(ROWS)
    ]
    # Within a step torch has one thread, whatever the kernels have.
    now = _clock()
    attentions, others = [], []
    for _ in range(rounds):
        spent: dict[str, float] = defaultdict(float)
        start = now()
        with backend.ops.observed(_timer(spent, now)):
            runner.run(Batch(rows, 0))
        attentions.append(spent["attention_decode"])
        others.append(now() - start - spent["attention_decode"])
    # Each at its best: where a neighbour slows one of them, the part says nothing.
    seconds, other_seconds = min(attentions), min(others)
    share = seconds / (seconds + other_seconds)
    yield Row(f"attention, {ROWS} rows of {CONTEXT}, {name}", seconds * 1000, "ms")
    yield Row(f"attention reads, {name}", held / seconds / 1e9, "GB/s")
    yield Row(f"its part of the step, {name}", share, "", "bar, at most", ATTENTION_BAR)
    yield Row(f"keys and values in what a step reads, {name}", held / (held + weights), "")


def _read(read: ReadLoop, parts: list[torch.Tensor]) -> None:
    for part in parts:
        read(part.data_ptr(), part.nbytes, torch.get_num_threads())


def _multiplying(backend: CpuBackend, matrices: list[Matrix], tokens: int) -> Callable[[], object]:
    """Return what multiplies by each in turn, as a step does."""
    given = {inputs: torch.ones(tokens, inputs) for _, _, inputs in matrices}

    def multiply() -> None:
        for op, packed, inputs in matrices:
            op(given[inputs], packed, None)

    return partial(backend.execute_runnable, multiply)


def best_in_turns(rounds: int, *ways: Callable[[], object]) -> list[float]:
    """Return the least seconds that each takes."""
    now = _clock()
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, taken, strict=True):
            # Torch's threads wait awake for a while, on the processors that the next one needs.
            time.sleep(AWAKE_S)
            start = now()
            way()
            times.append(now() - start)
    return [min(times) for times in taken]


def _clock() -> Callable[[], float]:
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _timer(spent: dict[str, float], now: Callable[[], float]) -> Callable[..., Any]:
    def timed(bound: BoundOp[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = now()
        result = bound.function(*args, **kwargs)
        spent[bound.op.name] += now() - start
        return result

    return timed


def _matrix(backend: CpuBackend, kind: str, outputs: int, inputs: int) -> Matrix:
    traits: dict[str, Any] = {"dtype": "fp32", "in_features": inputs, "out_features": outputs}
    plain = torch.randn(outputs, inputs)
    if kind == "int8":
        int8 = backend.ops.select(quantised_linear.linear_w8a8, **traits, group_size=32)
        assert int8.packing is not None
        return int8, int8.packing.pack(quantise_int8(plain, 32)), inputs
    linear = backend.ops.select(reference.linear, **traits)
    assert linear.packing is not None, "the cpu's kernels cannot be built here"
    if kind != "4 bits":
        return linear, linear.packing.pack(plain.half().float() if kind == "fp16" else plain), inputs
    assert linear.packing.pack_few_bits is not None
    values = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    scales, offsets = torch.rand(2, outputs, inputs // 32).half()
    return linear, linear.packing.pack_few_bits(FewBits(values, scales, offsets)), inputs


def _parts(packed: Any) -> Iterator[torch.Tensor]:
    for name in ("numbers", "scales_NGP", "offsets_NGP"):
        part = getattr(packed, name, None)
        if part is not None:
            yield part


def _read_loop() -> ReadLoop:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "read_loop.so"
        sources = [Path(__file__).with_name("read_loop.c"), Path(library.__file__).with_name("workers.c")]
        library.build(find_compiler(), made, sources=sources)
        function: Any = ctypes.CDLL(str(made)).read_all
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function  # type: ignore[no-any-return]


if __name__ == "__main__":
    raise SystemExit(main("kernel_ceilings", measure, ("torch",)))
