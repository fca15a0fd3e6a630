"""One model, one workload, one machine: sglk's engine, SGLang, vLLM and `transformers` side by side on the CPU.

The model has the shape of Qwen2.5-0.5B and random weights, in fp32. Engines are servers and run one after another, each
alone on the machine; `transformers` generates in this process, in batches of as many requests as run beside each other.
Upstream engines come from `scripts/upstream-env`; those that are not there are left out.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.result import Row, main
from sglk.bench.target import LaunchedServer
from sglk.config.compose import compose
from sglk.config.fleet import alone
from sglk.testing.tiny import tiny_config, write_json, write_shards, write_tokenizer
from sglk.testing.tiny_weights import tiny_weights
from sglk.upstream.launch import launch

NATIVE = "sglk"
ENVIRONMENTS = Path(__file__).parents[1] / ".upstream"
CORES = sorted(os.sched_getaffinity(0))

WARM_UP = 2
"""Requests before those that count."""

SPEED, FIRST, SAME = "output tokens/s", "time to first token, median", "answers with the text of sglk's"


@dataclass(frozen=True)
class Size:
    """How much is generated, by what."""

    shape: dict[str, Any]
    requests: int
    beside: int
    prompt_tokens: int
    output_tokens: int


QWEN_05B = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
FULL = Size(QWEN_05B, requests=16, beside=8, prompt_tokens=64, output_tokens=32)
QUICK = Size(SMALL, requests=4, beside=2, prompt_tokens=32, output_tokens=8)


@dataclass(frozen=True)
class Answer:
    """One request's text, and when its first token came, in seconds after it was sent."""

    text: str
    first_s: float


@dataclass(frozen=True)
class Run:
    """What one engine made of the workload."""

    answers: list[Answer]
    wall_s: float


Way = Callable[[Path, Size], Run]


def measure(quick: bool) -> list[Row]:
    """Let each engine that is here do the same work, and compare with sglk's."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "peer", size)
        runs: dict[str, Run] = {}
        for name, way in ways(quick).items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            runs[name] = way(model, size)
    return [row for name in runs for row in _rows(name, runs, size)]


def ways(quick: bool) -> dict[str, Way]:
    """Return how each engine that is installed is run, by its name with its version."""
    found: dict[str, Way] = {NATIVE: _native}
    sglang, vllm = (ENVIRONMENTS / engine / "bin" / "python" for engine in ("sglang", "vllm"))
    if sglang.exists():
        found["SGLang 0.5.18, its torch attention"] = partial(_upstream, "sglang", sglang, "torch_native")
        if not quick:
            found["SGLang 0.5.18, sglk's attention"] = partial(_upstream, "sglang", sglang, "sglk_cpu")
    if vllm.exists():
        found["vLLM 0.32.0"] = partial(_upstream, "vllm", vllm, "eager" if quick else None)
    found["transformers"] = _transformers
    for name in PEERS:
        if not any(each.startswith(name) for each in found):
            print(f"{name} is left out: scripts/upstream-env {name.lower()} installs it", file=sys.stderr)
    return found


PEERS = ("SGLang", "vLLM", "transformers")


def write_model(folder: Path, size: Size) -> Path:
    """Write the model. Only printable letters ever win, so that every token is a piece of text as it is generated."""
    folder.mkdir()
    config = tiny_config("Qwen2ForCausalLM", **size.shape)
    weights = tiny_weights(config)
    embedding = weights["model.embed_tokens.weight"]
    embedding[:32] = 0
    embedding[127:] = 0
    write_json(folder / "config.json", config)
    write_shards(folder, weights, 1)
    write_tokenizer(folder)
    return folder


def prompts(size: Size) -> list[list[int]]:
    """Return prompts that share no beginning."""
    return [
        [32 + (7 * index + 13 * at * (index + 1)) % 95 for at in range(size.prompt_tokens)]
        for index in range(size.requests)
    ]


def _words(model: Path, size: Size, *more: str) -> list[str]:
    return [
        "chip=cpu",
        f"model={model}",
        "profiles=none",
        "runtime.dtype=fp32",
        "runtime.max_total_tokens=8192",
        f"runtime.max_running_requests={size.beside}",
        f"runtime.num_threads={len(CORES)}",
        *more,
    ]


def _native(model: Path, size: Size) -> Run:
    with LaunchedServer(_words(model, size), log=model.parent / "sglk.log") as server:
        return _run(server.url, None, model.name, size)


def _upstream(engine: str, python: Path, variant: str | None, model: Path, size: Size) -> Run:
    more = [f"engine={engine}", f"engine.python={python}", f"engine.logs={model.parent / 'logs'}"]
    if engine == "sglang":
        more.append(f"engine.extra_args.attention_backend={variant}")
    elif variant == "eager":
        more.append("runtime.disable_cuda_graph=true")
    with _variables(engine):
        started = launch(alone(compose("serve", _words(model, size, *more)).config)[0])
    try:
        return _run(started.url, started.key, model.name, size)
    finally:
        started.shutdown()


@contextmanager
def _variables(engine: str) -> Iterator[None]:
    """Let an engine run on any CPU, and on all of its cores: vLLM leaves one to others."""
    given = {
        "sglang": {"SGLANG_PLATFORM": "sglk_cpu"},
        "vllm": {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES))},
    }[engine]
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(url: str, key: str | None, model: str, size: Size) -> Run:
    """Send all requests over HTTP, so many beside each other; the first answers of a server are not counted."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=600, trust_env=False) as http:
        ask = partial(_ask, http, model, size.output_tokens)
        warm_up = [[126 - token % 90 for token in prompt] for prompt in prompts(size)[:WARM_UP]]
        with ThreadPoolExecutor(size.beside) as pool:
            list(pool.map(ask, warm_up))
            start = time.perf_counter()
            answers = list(pool.map(ask, prompts(size)))
            return Run(answers, time.perf_counter() - start)


def _ask(http: httpx.Client, model: str, length: int, prompt: list[int]) -> Answer:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": length,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, first_s, text, generated = time.perf_counter(), 0.0, "", 0
    with http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            event = json.loads(data)
            generated = (event.get("usage") or {}).get("completion_tokens", generated)
            piece = "".join(choice["text"] for choice in event["choices"])
            if piece and not text:
                first_s = time.perf_counter() - start
            text += piece
    if generated != length:
        raise RuntimeError(
            f"{http.base_url} generated {generated} tokens of {length}: {answer.status_code} {text[:200]}"
        )
    return Answer(text, first_s)


def _transformers(model: Path, size: Size) -> Run:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(CORES))
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded.eval()
    asked = prompts(size)
    batches = [asked[at : at + size.beside] for at in range(0, size.requests, size.beside)]
    _batch(loaded, batches[0][:WARM_UP], size.output_tokens)
    start = time.perf_counter()
    # All are sent at once, as many as a batch holds; the first batch does not wait for another.
    answers = [answer for batch in batches for answer in _batch(loaded, batch, size.output_tokens)]
    return Run(answers, time.perf_counter() - start)


def _batch(model: Any, batch: list[list[int]], length: int) -> list[Answer]:
    import torch

    ids = torch.tensor(batch)
    start = time.perf_counter()
    seen: list[float] = []

    def on_step(_ids: Any, scores: Any) -> Any:
        seen.append(time.perf_counter() - start)
        return scores

    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
            logits_processor=[on_step],
        )
    return [Answer("".join(map(chr, row[ids.shape[1] :])), seen[0]) for row in found.tolist()]


def _rows(name: str, runs: dict[str, Run], size: Size) -> list[Row]:
    def speed(run: Run) -> float:
        return size.requests * size.output_tokens / run.wall_s

    def first_s(run: Run) -> float:
        return median(answer.first_s for answer in run.answers)

    run, ours = runs[name], runs[NATIVE]
    if name == NATIVE:
        return [Row(f"{name} | {SPEED}", speed(run), "tok/s"), Row(f"{name} | {FIRST}", first_s(run), "s")]
    same = sum(answer.text == other.text for answer, other in zip(run.answers, ours.answers, strict=True))
    return [
        Row(f"{name} | {SPEED}", speed(run), "tok/s", NATIVE, speed(ours)),
        Row(f"{name} | {FIRST}", first_s(run), "s", NATIVE, first_s(ours)),
        Row(f"{name} | {SAME}", same, "", "requests", size.requests),
    ]


def page(result: dict[str, Any]) -> str:
    """Return docs/peers.md."""
    found: dict[str, dict[str, float]] = {}
    for row in result["rows"]:
        name, metric = row["metric"].split(" | ")
        found.setdefault(name, {})[metric] = row["value"]
    quick = "--quick" in result["command"]
    size = QUICK if quick else FULL
    ours = found[NATIVE]
    lines = ["| engine | output tokens/s | of sglk's | first token, median | same answers |", "|---|---|---|---|---|"]
    for name, values in sorted(found.items(), key=lambda each: -each[1][SPEED]):
        same = f"{values[SAME]:.0f} of {size.requests}" if SAME in values else ""
        lines.append(
            f"| {name} | {values[SPEED]:.1f} | {values[SPEED] / ours[SPEED]:.2f} | {values[FIRST]:.2f} s | {same} |"
        )
    missing = [name for name in PEERS if not any(each.startswith(name) for each in found)]
    if missing:
        lines += ["", f"Left out, as not installed: {', '.join(missing)}."]
    machine, versions = result["machine"], result["versions"]
    facts = (
        f"{result['date'][:10]}, {machine['cpu']}, {machine['cores']} cores; sglk {versions['sglk']}, torch"
        f" {versions['torch']}, transformers {versions['transformers']}."
    )
    workload = (
        f"{'A tiny model' if quick else 'The shape of Qwen2.5-0.5B'} with random weights, fp32;"
        f" {size.requests} requests of {size.prompt_tokens} + {size.output_tokens} tokens, greedy,"
        f" {size.beside} beside each other."
    )
    return "\n".join([_INTRO, f"```sh\n{result['command']}\n```\n", facts, "", workload, "", *lines, "", _NOTES])


_INTRO = """\
# sglk's engine beside others, on a CPU

The same model and the same requests, one engine after another, each alone on the machine. Upstream engines come from
`scripts/upstream-env`, are composed and launched as `sglk serve engine=...` does, and are asked without its router.
"""

_NOTES = """\
- A token costs the same whatever it says, so random weights measure what real ones would. The figures say nothing of
  accelerators, for which SGLang and vLLM are made.
- The time to the first token is from the moment that a request was sent, so it holds the wait for others' prompts.
- SGLang's own CPU kernels need AVX-512 or AMX. Here it runs on sglk's platform plugin, once with its own attention in
  plain torch, once with sglk's.
- vLLM runs on all cores, with its compiler unless the command says `--quick`.
- `transformers` is no server: it gets batches without padding, and no HTTP.
- Where an answer differs, two logits were closer than the rounding of fp32.
"""


if __name__ == "__main__":
    raise SystemExit(main("peers", measure, ("torch", "transformers"), page))
