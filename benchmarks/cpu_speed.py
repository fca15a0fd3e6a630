"""Decode and prefill speed on the cpu: the engine's formats against `transformers` and llama.cpp, same weights.

All run with the same number of threads, in turns, best of the rounds: neighbours on the machine only ever take time
away. With one thread (`OMP_NUM_THREADS=1`) the CPU time of the process counts, which neighbours hardly change; with
more the time that passes, which is worth something on a quiet machine only. Decode is the time of a whole answer less
that of its first token, so that no prefill is in it. `transformers` runs in fp32 in this process; llama.cpp by its
`llama-batched-bench` (`--rival PATH`, else that of the path), on the same file, by the time that passes.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.result import Row, main
from benchmarks.transformers_compare import MODEL, Tokens, load_transformers
from sglk.config.compose import compose
from sglk.engine.messages import SamplingParams
from sglk.llm import LLM
from sglk.models.description import describe_model
from sglk.models.gguf_file import GgufFile

FORMATS: dict[str, str | None] = {"fp32": None, "w8a8": "w8a8", "w4a16": "w4a16"}
"""What each of our columns sets `runtime.quantization` to."""
RIVAL_PROGRAM = "llama-batched-bench"

Generate = Callable[[Tokens, int], float]
"""Takes prompts and the length of each answer, returns seconds."""


@dataclass(frozen=True)
class Size:
    """How much is generated."""

    batches: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    prefill_tokens: int
    rounds: int


FULL = Size(batches=(1, 8, 16, 32), prompt_tokens=32, output_tokens=33, prefill_tokens=512, rounds=3)
"""About six minutes on two quiet cores."""
QUICK = Size(batches=(1, 8), prompt_tokens=16, output_tokens=5, prefill_tokens=64, rounds=1)


def measure(quick: bool, rival: str | None = None) -> list[Row]:
    """Alternate between the ways, and hold ours against each rival."""
    size = QUICK if quick else FULL
    model = load_transformers()
    ways: dict[str, Generate] = {"transformers fp32": lambda prompts, length: _transformers(model, prompts, length)}
    engines = {name: _engine(scheme) for name, scheme in FORMATS.items()}
    for name, llm in engines.items():
        ways[name] = lambda prompts, length, llm=llm: _timed_engine(llm, prompts, length)  # type: ignore[misc]
    try:
        speeds = {f"decode, batch {batch}": _decode(ways, batch, size) for batch in size.batches}
        speeds[f"prefill {size.prefill_tokens}"] = _prefill(ways, size)
    finally:
        for llm in engines.values():
            llm.close()
    for metric, speed in (_llama_cpp(rival, size) if rival else {}).items():
        speeds[metric]["llama.cpp"] = speed
    return [row for metric, found in speeds.items() for row in _rows(metric, found)]


def _engine(scheme: str | None) -> LLM:
    overrides = ["profiles=none", *([f"runtime.quantization={scheme}"] if scheme else [])]
    return LLM(MODEL, overrides=overrides, dtype="fp32", max_running_requests=max(FULL.batches))


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


def _best(ways: dict[str, Generate], prompts: Tokens, length: int, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, generate in ways.items():
            found[name].append(generate(prompts, length))
    return {name: min(seconds) for name, seconds in found.items()}


def _decode(ways: dict[str, Generate], batch: int, size: Size) -> dict[str, float]:
    prompts = _prompts(batch, size.prompt_tokens)
    whole = _best(ways, prompts, size.output_tokens, size.rounds)
    first = _best(ways, prompts, 1, size.rounds)
    # Neighbours may take more from the first than from the rest; the whole time is then what is certain.
    spent = {name: whole[name] - first[name] if whole[name] > first[name] else whole[name] for name in ways}
    return {name: batch * (size.output_tokens - 1) / seconds for name, seconds in spent.items()}


def _prefill(ways: dict[str, Generate], size: Size) -> dict[str, float]:
    seconds = _best(ways, _prompts(1, size.prefill_tokens), 1, size.rounds)
    return {name: size.prefill_tokens / spent for name, spent in seconds.items()}


def _llama_cpp(program: str, size: Size) -> dict[str, float]:
    """Return llama.cpp's speeds by metric."""
    description = describe_model(compose("serve", [f"model={MODEL}"]).config.model)
    assert isinstance(description.weights, GgufFile)
    best: dict[str, float] = {}
    for prompt, output, batches in (
        (size.prompt_tokens, size.output_tokens, size.batches),
        (size.prefill_tokens, 1, (1,)),
    ):
        for _ in range(size.rounds):
            for line in _bench_lines(program, str(description.weights.path), prompt, output, batches):
                decode = prompt == size.prompt_tokens
                metric = f"decode, batch {line['pl']}" if decode else f"prefill {size.prefill_tokens}"
                best[metric] = max(best.get(metric, 0.0), line["speed_tg" if decode else "speed_pp"])
    return best


def _bench_lines(program: str, path: str, prompt: int, output: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    listed, threads = ",".join(map(str, batches)), str(torch.get_num_threads())
    context = str(max(batches) * (prompt + output))
    command = [program, "-m", path, "-c", context, "-npp", str(prompt), "-ntg", str(output), "-npl", listed]
    command += ["-t", threads, "--output-format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _rows(metric: str, speeds: dict[str, float]) -> list[Row]:
    rivals = [name for name in speeds if name not in FORMATS]
    return [
        Row(f"{metric}, {ours}", speeds[ours], "tok/s", rival, speeds[rival]) for ours in FORMATS for rival in rivals
    ]


if __name__ == "__main__":
    raise SystemExit(main("cpu_speed", measure, ("torch", "transformers"), rival=RIVAL_PROGRAM))
