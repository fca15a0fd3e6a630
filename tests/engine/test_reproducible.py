"""A request with a seed comes to the same tokens and the same bits of logprobs, whatever is computed beside it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.dtypes import torch_dtype
from sglk.config.schema import RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import SamplingParams, TokenLogprob
from sglk.testing.tiny import tiny_config
from tests.engine.receiving import TOKENIZER, Receiver, held, submit
from tests.models.greedy import tiny_runner

pytestmark = pytest.mark.skipif(isinstance(kernels(), str), reason="the kernels cannot be built here")

# Sums are longer than a block of inputs, and the longest row than a part of attention.
SIZES = {"hidden_size": 288, "intermediate_size": 320, "head_dim": 40, "max_position_embeddings": 1024}
MODELS = {
    "dense": tiny_config("Qwen3ForCausalLM", **SIZES),
    "window": tiny_config("MistralForCausalLM", **SIZES, sliding_window=37),
    "experts": tiny_config("Qwen2MoeForCausalLM", **(SIZES | {"head_dim": 72})),
}
DRAWN = SamplingParams(max_new_tokens=12, temperature=1.0, ignore_eos=True, logprobs=2, prompt_logprobs_start=0)
RNG = random.Random(0)
PROMPTS = [RNG.choices(range(256), k=length) for length in (1, 40, 90, 530)]

CROWDED = {"chunked_prefill_size": 28, "enable_mixed_chunk": True, "page_size": 4, "max_total_tokens": 700}

Answer = tuple[list[int], list[TokenLogprob | None]]


@contextmanager
def engine_of(
    model: str, dtype: str, kv_cache_dtype: str = "auto", kernels: Any = "native", threads: int = 2, **runtime: Any
) -> Iterator[Engine]:
    settings: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "max_total_tokens": 4096} | runtime
    backend = CpuBackend(num_threads=threads, kernels=kernels)
    runner = tiny_runner(MODELS[model], None, backend, torch_dtype(dtype), **settings)
    engine = Engine(runner, TOKENIZER, RuntimeConfig(**settings))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


def started(engine: Engine, name: str) -> list[Receiver]:
    return [submit(engine, f"{name} {i}", each, replace(DRAWN, seed=i)) for i, each in enumerate(PROMPTS)]


def answer(receiver: Receiver) -> Answer:
    receiver.wait()
    prompt = [each for output in receiver.outputs for each in output.prompt_logprobs or ()]
    return receiver.token_ids, [*prompt, *(each for output in receiver.outputs for each in output.logprobs)]


def alone(engine: Engine) -> list[Answer]:
    """One after the other, each on an empty cache."""
    answers = []
    for index, prompt in enumerate(PROMPTS):
        answers.append(answer(submit(engine, f"alone {index}", prompt, replace(DRAWN, seed=index))))
        engine.flush_cache()
    return answers


def among_others(engine: Engine) -> list[Answer]:
    """Beside rows that decode, rows whose prompts come in chunks, and rows that begin alike."""
    rng = random.Random(1)
    others = [
        submit(engine, f"other {i}", rng.choices(range(256), k=rng.randrange(1, 60)), replace(DRAWN, seed=-i))
        for i in range(5)
    ]
    others[0].wait_for(lambda: len(others[0].token_ids) > 0)
    wanted = started(engine, "wanted")
    twins = [submit(engine, f"twin {i}", prompt[:-1] or [5], DRAWN) for i, prompt in enumerate(PROMPTS)]
    answers = [answer(receiver) for receiver in wanted]
    for receiver in (*others, *twins):
        receiver.wait()
    return answers


CASES = [
    *((model, dtype, "auto") for model in MODELS for dtype in ("fp32", "bf16", "fp16")),
    ("dense", "bf16", "int8"),
    ("window", "fp32", "fp8_e4m3"),
]


@pytest.mark.parametrize(("model", "dtype", "kv_cache_dtype"), CASES)
def test_neighbours_and_chunks_change_no_bit(model: str, dtype: str, kv_cache_dtype: str) -> None:
    with engine_of(model, dtype, kv_cache_dtype) as engine:
        expected = alone(engine)
        assert len({token for tokens, _ in expected for token in tokens}) > len(PROMPTS)
        assert among_others(engine) == expected
    with engine_of(model, dtype, kv_cache_dtype, **CROWDED) as engine:
        assert among_others(engine) == expected


@pytest.mark.parametrize("model", MODELS)
def test_threads_change_no_bit(model: str) -> None:
    answers = []
    for threads in (1, 2, 4, 8):
        with engine_of(model, "fp32", threads=threads) as engine:
            answers.append(among_others(engine))
    assert answers == answers[:1] * 4


@pytest.mark.parametrize(("model", "dtype"), [("dense", "bf16"), ("window", "fp32")])
def test_tokens_computed_one_by_one_and_again_as_a_prompt_are_the_same(model: str, dtype: str) -> None:
    long = replace(DRAWN, max_new_tokens=60)
    with engine_of(model, dtype, max_total_tokens=176, schedule_conservativeness=0.01) as engine:
        expected = []
        for seed in range(4):
            expected.append(answer(submit(engine, f"alone {seed}", PROMPTS[1][seed:], replace(long, seed=seed))))
            engine.flush_cache()
        assert engine.stats().retractions == 0
        with held(engine):
            together = [submit(engine, str(seed), PROMPTS[1][seed:], replace(long, seed=seed)) for seed in range(4)]
        assert [answer(receiver) for receiver in together] == expected
        assert engine.stats().retractions > 0


def test_kernels_for_any_processor_hold_to_it_too() -> None:
    with engine_of("dense", "bf16", kernels="portable") as engine:
        expected = alone(engine)
        assert among_others(engine) == expected
