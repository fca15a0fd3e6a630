"""A real tiny model under a real engine: whatever runs beside a request, its tokens are those of transformers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import SamplingParams
from sglk.testing.tiny import tiny_config
from tests.engine.receiving import TOKENIZER, Receiver, held, submit
from tests.models.greedy import ARCHITECTURES, oracle, tiny_runner

CONFIG = tiny_config()
FAMILIES = ("mistral", "qwen2-window", "qwen3-layer-types", "mixtral", "qwen2-moe-mixed", "qwen3-moe")
COUNT = 12
GREEDY = SamplingParams(max_new_tokens=COUNT, temperature=0.0, ignore_eos=True)


def prompts() -> list[list[int]]:
    """Prompts that share beginnings of all lengths, two twins among them."""
    rng = random.Random(3)
    stem = rng.choices(range(256), k=60)
    shared = (0, 1, 15, 16, 17, 33, 48, 59)
    return [stem, stem, *(stem[:length] + rng.choices(range(256), k=rng.randrange(1, 20)) for length in shared)]


@cache
def expected() -> list[list[int]]:
    return oracle(CONFIG, prompts(), COUNT)


@cache
def expected_of(family: str) -> list[list[int]]:
    return oracle(ARCHITECTURES[family], prompts()[1:7], COUNT)


@contextmanager
def real_engine(config: dict[str, Any] = CONFIG, **runtime: Any) -> Iterator[Engine]:
    settings = {"max_total_tokens": 2048, "num_threads": 1} | runtime
    engine = Engine(tiny_runner(config, **settings), TOKENIZER, RuntimeConfig(**settings))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    "runtime",
    [
        {},
        {"disable_radix_cache": True},
        {"page_size": 1, "schedule_policy": "lpm"},
        {"chunked_prefill_size": 7, "schedule_policy": "shortest_prompt_first"},
        {"chunked_prefill_size": -1, "max_prefill_tokens": 32, "page_size": 4},
        {"chunked_prefill_size": 16, "enable_mixed_chunk": True},
        {"page_size": 128, "chunked_prefill_size": 128, "enable_mixed_chunk": True, "max_total_tokens": 512},
        {"max_running_requests": 1, "page_size": 4},
        {"page_size": 4, "max_total_tokens": 96, "schedule_conservativeness": 0.01},
        {"radix_min_len": 32, "page_size": 8},
    ],
    ids=lambda runtime: ",".join(f"{key}={value}" for key, value in runtime.items()) or "default",
)
def test_tokens_equal_those_of_transformers(runtime: dict[str, Any]) -> None:
    with real_engine(**runtime) as engine:
        for repeat in range(2):
            with held(engine):
                receivers = [submit(engine, f"{repeat}-{i}", prompt, GREEDY) for i, prompt in enumerate(prompts())]
            for receiver in receivers:
                receiver.wait()
            assert [receiver.token_ids for receiver in receivers] == expected()
        stats = engine.stats()

    caches = not runtime.get("disable_radix_cache") and runtime.get("page_size", 16) < len(prompts()[0])
    assert (stats.cached_prompt_tokens > 0) == caches
    if runtime.get("max_total_tokens") == 96:
        assert stats.retractions > 0
        assert stats.evicted_tokens > 0


@pytest.mark.parametrize(
    "runtime",
    [
        {"page_size": 1, "chunked_prefill_size": 7, "max_total_tokens": 90, "schedule_conservativeness": 0.01},
        {"page_size": 16, "chunked_prefill_size": 32, "enable_mixed_chunk": True, "disable_radix_cache": True},
    ],
    ids=["small pool", "mixed chunks"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_tokens_through_retraction_and_an_abort(family: str, runtime: dict[str, Any]) -> None:
    with real_engine(ARCHITECTURES[family], **runtime) as engine:
        doomed = submit(engine, "doomed", prompts()[0][:10], replace(GREEDY, max_new_tokens=75))
        doomed.wait_for(lambda: len(doomed.token_ids) > 0)
        with held(engine):
            receivers = [submit(engine, str(i), prompt, GREEDY) for i, prompt in enumerate(prompts()[1:7])]
        receivers[0].wait_for(lambda: len(receivers[0].token_ids) > 0)
        engine.abort("doomed")
        for receiver in receivers:
            receiver.wait()
        assert [receiver.token_ids for receiver in receivers] == expected_of(family)
        stats = engine.stats()
    if runtime["page_size"] == 1:
        assert stats.retractions > 0


def test_cached_twin_and_longer_prompt_continue_alike() -> None:
    stem = prompts()[0]
    with real_engine(page_size=16) as engine:
        first = submit(engine, "first", stem, GREEDY)
        first.wait()
        twin, longer = (
            submit(engine, "twin", stem, GREEDY),
            submit(engine, "longer", stem + first.token_ids[:4], GREEDY),
        )
        twin.wait()
        longer.wait()

    assert [_cached(receiver) for receiver in (first, twin, longer)] == [0, 48, 48]
    assert twin.token_ids == first.token_ids
    assert longer.token_ids[: COUNT - 4] == first.token_ids[4:]


def test_every_row_of_a_mixed_batch_is_that_request_alone() -> None:
    """Rows that draw, rows that cannot but take the likeliest token, and one with a bias."""
    short = replace(GREEDY, max_new_tokens=6)
    kinds = list(product((0.0, 1e-9, 1e-4, 1.0, 2.0), ((1.0, -1), (1e-9, -1), (1.0, 1), (1.0, 10**6))))
    sampling = [
        replace(short, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
        for seed, (temperature, (top_p, top_k)) in enumerate(kinds)
    ]
    sampling.append(replace(short, logit_bias=((expected()[0][0], -100.0),)))
    stem = prompts()[0]
    with real_engine(max_running_requests=64, disable_radix_cache=True) as engine:
        together = [submit(engine, f"together {index}", stem, one) for index, one in enumerate(sampling)]
        for receiver in together:
            receiver.wait()
        for index, one in enumerate(sampling):
            alone = submit(engine, f"alone {index}", stem, one)
            alone.wait()
            assert together[index].token_ids == alone.token_ids, one

    for (temperature, (top_p, top_k)), receiver in zip(kinds, together, strict=False):
        if temperature <= 1e-4 or top_k == 1 or top_p == 1e-9:
            assert receiver.token_ids == expected()[0][:6]
    assert together[-1].token_ids[0] != expected()[0][0]
    assert len({tuple(receiver.token_ids) for receiver in together}) > 4


def _cached(receiver: Receiver) -> int:
    return receiver.outputs[-1].cached_tokens
