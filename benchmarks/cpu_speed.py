"""Decode and prefill speed on the cpu against `transformers` and llama.cpp: same files, same weights, every bar.

The model is read from its 4-bit file, which sglk keeps in 4 bits without changing a number, or computes in w8a8, and
from one of 16-bit floats, which is made of it first. All take turns at one batch before the next, round after round:
memory that is shared with other machines has slow half minutes, which then are everybody's. The median of the rounds
counts. With one thread (`OMP_NUM_THREADS=1`) the CPU time of the process counts, which neighbours hardly change; with
more the time that passes, which is worth something on a quiet machine only. Decode is the time of a whole answer less
that of its first token, so that no prefill is in it. `transformers` runs in fp32 in this process; llama.cpp by its
`llama-batched-bench` (`--rival PATH`, else that of the path), on both files, by the time that passes.
"""

import json
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
AWAKE_S = 0.02

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


@dataclass(frozen=True)
class Run:
    """Rows that are generated together, and the tokens of their prompts and answers."""

    metric: str
    rows: int
    prompt: int
    answer: int


@dataclass(frozen=True)
class Size:
    """How much is generated, and how often."""

    batches: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    prefill_tokens: int
    rounds: int

    def runs(self) -> Iterator[Run]:
        """Yield what is measured one after the other."""
        for batch in self.batches:
            yield Run(f"batch {batch}", batch, self.prompt_tokens, self.output_tokens)
        yield Run("prefill", 1, self.prefill_tokens, 1)


FULL = Size(batches=(1, 8, 16, 32), prompt_tokens=32, output_tokens=33, prefill_tokens=512, rounds=5)
"""About five minutes on two quiet cores."""
QUICK = Size(batches=(1, 8), prompt_tokens=16, output_tokens=5, prefill_tokens=64, rounds=1)


def measure(quick: bool, rival: str | None = None) -> list[Row]:
    """Let all take their turns, and hold ours against each rival."""
    size = QUICK if quick else FULL
    description = describe_model(compose("serve", [f"model={MODEL}"]).config.model)
    assert isinstance(description.weights, GgufFile)
    four_bits = Path(description.weights.path)
    with tempfile.TemporaryDirectory(prefix="sglk-f16-") as folder, ExitStack() as engines:
        f16 = Path(folder) / "model.gguf"
        write_in_f16(four_bits, f16)
        ways: dict[str, Generate] = {
            TRANSFORMERS: partial(_transformers, load_transformers()),
            F16: engines.enter_context(_engine(str(f16))),
            FOUR_BITS: engines.enter_context(_engine(MODEL)),
            W8A8: engines.enter_context(_engine(MODEL, "runtime.quantization=w8a8")),
        }
        takers = {name: partial(_own_speed, generate) for name, generate in ways.items()}
        if rival:
            takers[LLAMA_F16] = partial(_llama_cpp, rival, f16)
            takers[LLAMA_FOUR_BITS] = partial(_llama_cpp, rival, four_bits)
        speeds = {run.metric: _in_turns(takers, run, size.rounds) for run in size.runs()}
    for found in speeds.values() if rival else ():
        found[LLAMA_BEST] = max(found[LLAMA_F16], found[LLAMA_FOUR_BITS])
    return list(_rows(speeds))


def _in_turns(takers: Mapping[str, Callable[[Run], float]], run: Run, rounds: int) -> dict[str, float]:
    """Return the median speed of each."""
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, take in takers.items():
            # Threads of the one before wait awake for a while, on processors that this one needs.
            time.sleep(AWAKE_S)
            taken[name].append(take(run))
    return {name: statistics.median(speeds) for name, speeds in taken.items()}


def _own_speed(generate: Generate, run: Run) -> float:
    # What is only done once, such as recording a step of so many rows, is nobody's speed.
    generate(_prompts(run.rows, run.prompt), min(run.answer, 3))
    whole = generate(_prompts(run.rows, run.prompt), run.answer)
    if run.answer == 1:
        return run.prompt / whole
    return run.rows * (run.answer - 1) / (whole - generate(_prompts(run.rows, run.prompt), 1))


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


def _transformers(model: Any, prompts: Tokens, length: int) -> float:
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


def _llama_cpp(program: str, file: Path, run: Run) -> float:
    command = [program, "-m", str(file), "-c", str(run.rows * (run.prompt + run.answer)), "-npp", str(run.prompt)]
    command += ["-ntg", str(run.answer), "-npl", str(run.rows), "-t", str(torch.get_num_threads())]
    done = subprocess.run([*command, "--output-format", "jsonl"], capture_output=True, text=True, check=True)
    found = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return float(found["speed_pp" if run.answer == 1 else "speed_tg"])


def _rows(speeds: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    for (ours, rival), bars in BARS.items():
        for metric, found in speeds.items():
            if rival not in found:
                continue
            bar = f"{rival}, bar {bars[metric]:g}" if metric in bars else rival
            yield Row(f"{metric}, {ours}", found[ours], "tok/s", bar, found[rival])


if __name__ == "__main__":
    raise SystemExit(main("cpu_speed", measure, ("torch", "transformers"), rival=RIVAL_PROGRAM))
