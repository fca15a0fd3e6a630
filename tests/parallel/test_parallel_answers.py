"""Ranks in processes answer as one piece: quantised, whatever is batched, chunked, cached, retracted or aborted."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sglk.engine.engine import Engine
from sglk.engine.messages import SamplingParams
from sglk.testing.tiny import write_tiny_model
from tests.engine.receiving import ENDLESS, held, submit
from tests.parallel.test_parallel_engine import started


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """A model with experts in int8, in one piece and in two."""
    model = write_tiny_model(tmp_path_factory.mktemp("model"), architecture="Qwen2MoeForCausalLM")
    settings = {"quantization": "w8a8", "kv_cache_dtype": "int8"}
    with started(model, **settings) as alone, started(model, tp_size=2, **settings) as parallel:
        yield alone, parallel


def prompts(rng: random.Random) -> list[list[int]]:
    stem = rng.choices(range(256), k=30)
    return [stem[: rng.randint(1, 30)] + rng.choices(range(256), k=rng.randint(0, 20)) for _ in range(6)]


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)


def answers(engine: Engine) -> list[list[int]]:
    """Return the greedy answers to some prompts, while another request starts with each of two and is aborted."""
    rng = random.Random(7)
    asked = prompts(rng)
    with held(engine):
        receivers = [submit(engine, str(i), ids, greedy(rng.randint(1, 30))) for i, ids in enumerate(asked)]
    for i in rng.sample(range(6), 2):
        aborted = submit(engine, f"aborted-{i}", asked[i], ENDLESS)
        aborted.wait_for(lambda aborted=aborted: bool(aborted.outputs))
        engine.abort(f"aborted-{i}")
        # It may come to its end before.
        assert aborted.wait().reason in ("abort", "length")
    assert {receiver.wait().reason for receiver in receivers} == {"length"}
    return [receiver.token_ids for receiver in receivers]


@pytest.mark.parametrize(
    "runtime",
    [
        {"page_size": 1, "chunked_prefill_size": 7, "enable_mixed_chunk": True},
        {"page_size": 16, "chunked_prefill_size": 16, "disable_radix_cache": True},
        {"page_size": 4, "chunked_prefill_size": 64, "max_total_tokens": 120, "schedule_conservativeness": 0.01},
    ],
    ids=["mixed", "uncached", "tight"],
)
def test_two_ranks_answer_as_one_piece_does(engines: tuple[Engine, Engine], runtime: dict[str, Any]) -> None:
    retractions = engines[1].stats().retractions
    for engine in engines:
        engine.reconfigure(replace(engine.runtime, **{"max_total_tokens": 1024, **runtime}))
    alone, parallel = (answers(engine) for engine in engines)
    assert parallel == alone
    assert (engines[1].stats().retractions > retractions) == ("max_total_tokens" in runtime)
