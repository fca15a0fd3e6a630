"""Decode and prefill speed on the cpu against `transformers` and llama.cpp: same files, same weights, every bar.

The model is read from its 4-bit file, which sglk keeps in 4 bits without changing a number, or computes in w8a8, and
from one of 16-bit floats, which is made of it first. Each round all take their turn, an engine only being there in its
own, so that no other's threads wait beside it; the best of the rounds counts, for neighbours on the machine only ever
take time away. With one thread (`OMP_NUM_THREADS=1`) the CPU time of the process counts, which neighbours hardly
change; with more the time that passes, which is worth something on a quiet machine only. Decode is the time of a whole
answer less that of its first token, so that no prefill is in it. `transformers` runs in fp32 in this process; llama.cpp
by its `llama-batched-bench` (`--rival PATH`, else that of the path), on both files, by the time that passes.
"""

import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.f16_file import write_in_f16
from benchmarks.result import Row, main
from benchmarks.transformers_compare import MODEL, Tokens, load_transformers
from sglk.config.compose import compose
from sglk.engine.messages import SamplingParams
from sglk.llm import LLM
from sglk.models.description import describe_model
from sglk.models.gguf_file import GgufFile

F16, FOUR_BITS, W8A8 = "16-bit file", "4-bit file", "4-bit file in w8a8"
LLAMA_F16, LLAMA_FOUR_BITS, LLAMA_BEST = "llama.cpp f16", "llama.cpp Q4_1", "llama.cpp's best"
TRANSFORMERS = "transformers fp32"
RIVAL_PROGRAM = "llama-batched-bench"

BARS: dict[tuple[str, str], dict[str, float]] = {
    (F16, LLAMA_F16): {"batch 1": 1.0, "batch 8": 1.0, "batch 16": 1.0, "batch 32": 1.0, "prefill": 1.0},
    (FOUR_BITS, LLAMA_FOUR_BITS): {"batch 1": 0.9},
    (W8A8, LLAMA_BEST): {"batch 1": 1.0, "batch 8": 1.5, "batch 16": 1.5, "batch 32": 1.5, "prefill": 1.2},
    (F16, TRANSFORMERS): {"batch 1": 3.0, "batch 8": 3.0, "batch 32": 1.8},
    (FOUR_BITS, TRANSFORMERS): {"batch 1": 3.0, "batch 8": 3.0, "batch 32": 1.8},
}
"""How many times as fast as whom each of ours shall be."""

Generate = Callable[[Tokens, int], float]
"""Takes prompts and the length of each answer, returns seconds."""
Way = Callable[[], AbstractContextManager[Generate]]


@dataclass(frozen=True)
class Size:
    """How much is generated."""

    batches: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    prefill_tokens: int
    rounds: int

    def runs(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield each metric with its rows, and the tokens of prompts and answers."""
        for batch in self.batches:
            yield f"batch {batch}", batch, self.prompt_tokens, self.output_tokens
        yield "prefill", 1, self.prefill_tokens, 1


FULL = Size(batches=(1, 8, 16, 32), prompt_tokens=32, output_tokens=33, prefill_tokens=512, rounds=3)
"""About seven minutes on two quiet cores."""
QUICK = Size(batches=(1, 8), prompt_tokens=16, output_tokens=5, prefill_tokens=64, rounds=1)


def measure(quick: bool, rival: str | None = None) -> list[Row]:
    """Let all take their turns, and hold ours against each rival."""
    size = QUICK if quick else FULL
    description = describe_model(compose("serve", [f"model={MODEL}"]).config.model)
    assert isinstance(description.weights, GgufFile)
    four_bits = Path(description.weights.path)
    with tempfile.TemporaryDirectory(prefix="sglk-f16-") as folder:
        f16 = Path(folder) / "model.gguf"
        write_in_f16(four_bits, f16)
        model = load_transformers()
        ways: dict[str, Way] = {
            TRANSFORMERS: lambda: _transformers(model),
            F16: lambda: _engine(str(f16)),
            FOUR_BITS: lambda: _engine(MODEL),
            W8A8: lambda: _engine(MODEL, "runtime.quantization=w8a8"),
        }
        speeds: dict[str, dict[str, float]] = defaultdict(dict)
        spent: dict[tuple[str, str, bool], float] = {}
        for _ in range(size.rounds):
            for name, way in ways.items():
                with way() as generate:
                    _take_turn(name, generate, size, spent)
            if rival:
                for name, file in ((LLAMA_F16, f16), (LLAMA_FOUR_BITS, four_bits)):
                    _llama_cpp(rival, name, file, size, speeds)
    for metric, batch, prompt, length in size.runs():
        for name in ways:
            speeds[metric][name] = _speed(spent, name, metric, batch, prompt, length)
        if rival:
            speeds[metric][LLAMA_BEST] = max(speeds[metric][LLAMA_F16], speeds[metric][LLAMA_FOUR_BITS])
    return list(_rows(speeds, size))


def _take_turn(name: str, generate: Generate, size: Size, spent: dict[tuple[str, str, bool], float]) -> None:
    """Keep the least seconds of whole answers, and of first tokens."""
    for metric, batch, prompt, length in size.runs():
        # What is only done once, such as recording a step of so many rows, is nobody's speed.
        generate(_prompts(batch, prompt), min(length, 3))
        for whole in (True, False):
            seconds = generate(_prompts(batch, prompt), length if whole else 1)
            key = name, metric, whole
            spent[key] = min(seconds, spent.get(key, seconds))


def _speed(
    spent: dict[tuple[str, str, bool], float], name: str, metric: str, batch: int, prompt: int, length: int
) -> float:
    whole, first = spent[name, metric, True], spent[name, metric, False]
    if length == 1:
        return prompt / min(whole, first)
    # Neighbours may take more from the first than from the rest; the whole time is then what is certain.
    return batch * (length - 1) / (whole - first if whole > first else whole)


@contextmanager
def _engine(model: str, *overrides: str) -> Iterator[Generate]:
    llm = LLM(model, overrides=["profiles=none", *overrides], dtype="fp32", max_running_requests=max(FULL.batches))
    try:
        yield partial(_timed_engine, llm)
    finally:
        llm.close()


def _timed_engine(llm: LLM, prompts: Tokens, length: int) -> float:
    llm.engine.flush_cache()
    start = _now()
    llm.generate(prompts, SamplingParams(temperature=0.0, max_new_tokens=length, ignore_eos=True))
    return _now() - start


@contextmanager
def _transformers(model: Any) -> Iterator[Generate]:
    yield partial(_timed_transformers, model)


def _timed_transformers(model: Any, prompts: Tokens, length: int) -> float:
    ids = torch.tensor(prompts)
    start = _now()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
        )
    return _now() - start


def _now() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _prompts(count: int, length: int) -> Tokens:
    """Return prompts without a common beginning: what they say does not matter to the time."""
    return [[100 + (31 * row + 7 * place) % 40000 for place in range(length)] for row in range(count)]


def _llama_cpp(program: str, name: str, file: Path, size: Size, speeds: dict[str, dict[str, float]]) -> None:
    """Keep llama.cpp's best speeds by metric."""
    for prompt, output, batches in (
        (size.prompt_tokens, size.output_tokens, size.batches),
        (size.prefill_tokens, 1, (1,)),
    ):
        for line in _bench_lines(program, str(file), prompt, output, batches):
            decode = prompt == size.prompt_tokens
            best = speeds[f"batch {line['pl']}" if decode else "prefill"]
            best[name] = max(best.get(name, 0.0), line["speed_tg" if decode else "speed_pp"])


def _bench_lines(program: str, path: str, prompt: int, output: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    listed, threads = ",".join(map(str, batches)), str(torch.get_num_threads())
    context = str(max(batches) * (prompt + output))
    command = [program, "-m", path, "-c", context, "-npp", str(prompt), "-ntg", str(output), "-npl", listed]
    command += ["-t", threads, "--output-format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _rows(speeds: dict[str, dict[str, float]], size: Size) -> Iterator[Row]:
    for (ours, rival), bars in BARS.items():
        for metric, *_ in size.runs():
            found = speeds[metric]
            if rival not in found:
                continue
            bar = f"{rival}, bar {bars[metric]:g}" if metric in bars else rival
            yield Row(f"{metric}, {ours}", found[ours], "tok/s", bar, found[rival])


if __name__ == "__main__":
    raise SystemExit(main("cpu_speed", measure, ("torch", "transformers"), rival=RIVAL_PROGRAM))
