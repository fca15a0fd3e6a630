"""Logprobs of answers and prompts are those of transformers, whatever was cached, cut into chunks or retracted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from sglk.config.schema import RuntimeConfig
from sglk.engine import scheduler
from sglk.engine.batch import Batch, RowResult
from sglk.engine.engine import Engine
from sglk.engine.messages import LOGPROB_FLOOR, SamplingParams, TokenLogprob
from sglk.testing.tiny import tiny_config
from tests.engine.receiving import TOKENIZER, Receiver, held, submit
from tests.models.greedy import tiny_runner, transformers_model

CONFIG = tiny_config()
PROMPT = [(7 * place * place + 3 * place) % 250 for place in range(70)]
SCORED = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True, logprobs=3, prompt_logprobs_start=0)


@contextmanager
def tiny_engine(**runtime: Any) -> Iterator[Engine]:
    engine = Engine(tiny_runner(CONFIG), TOKENIZER, RuntimeConfig(**{"max_total_tokens": 1024, **runtime}))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


@cache
def model() -> Any:
    return transformers_model(CONFIG)


def oracle(tokens: list[int]) -> torch.Tensor:
    """Return log p(. | tokens before) at every position."""
    with torch.no_grad():
        logprobs: torch.Tensor = model()(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
    return logprobs


def check(known: TokenLogprob, expected_V: torch.Tensor, count: int = 3) -> None:
    assert known.logprob == pytest.approx(float(expected_V[known.token_id]), abs=1e-4)
    best = expected_V.topk(count)
    assert [token for token, _ in known.top] == best.indices.tolist()
    assert [logprob for _, logprob in known.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def check_all(receiver: Receiver, prompt: list[int], start: int | None = 0, count: int = 3) -> None:
    """Compare everything that `receiver` got with transformers."""
    tokens = prompt + receiver.token_ids
    expected_TV = oracle(tokens)
    new = [known for output in receiver.outputs for known in output.logprobs]
    assert [known.token_id for known in new] == receiver.token_ids
    for place, known in enumerate(new, start=len(prompt)):
        check(known, expected_TV[place - 1], count)
    told = [output.prompt_logprobs for output in receiver.outputs if output.prompt_logprobs is not None]
    if start is None:
        assert told == []
        return
    ((first, *others),) = told
    assert first is None
    assert [known.token_id for known in others if known] == prompt[start + 1 :]
    for place, known in enumerate(others, start=start + 1):
        assert known is not None
        check(known, expected_TV[place - 1], count)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [-1, 16])
@pytest.mark.parametrize("disabled", [False, True])
def test_prompt_and_answer_with_cache_on_and_off(page_size: int, chunk: int, disabled: bool) -> None:
    with tiny_engine(page_size=page_size, chunked_prefill_size=chunk, disable_radix_cache=disabled) as engine:
        for name, start in (("cold", 0), ("warm", 0), ("end", 40), ("last", 69), ("none", None)):
            receiver = submit(engine, name, PROMPT, replace(SCORED, prompt_logprobs_start=start))
            receiver.wait()
            check_all(receiver, PROMPT, start)
            cached = receiver.outputs[-1].cached_tokens
            # The cache serves what comes before the first logits that are needed.
            reusable = 69 if start is None else start
            assert cached == (0 if disabled or name == "cold" else reusable // page_size * page_size)


@pytest.mark.parametrize("length", [1, 2, 17])
def test_short_prompts(length: int) -> None:
    with tiny_engine() as engine:
        receiver = submit(engine, "r", PROMPT[:length], SCORED)
        receiver.wait()
    check_all(receiver, PROMPT[:length])


def test_a_prompt_is_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_SCORED_TOKENS", 16)
    with tiny_engine(chunked_prefill_size=-1) as engine:
        receiver = submit(engine, "r", PROMPT, SCORED)
        receiver.wait()
        assert engine.stats().steps == 5 + 5
    check_all(receiver, PROMPT)


def test_a_step_scores_so_many_tokens_of_all_prompts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_SCORED_TOKENS", 100)
    runner, scored = tiny_runner(CONFIG), []
    run = runner.run

    def noted(batch: Batch) -> list[RowResult]:
        scored.append(sum(len(row.scored) for row in batch.rows))
        return run(batch)

    monkeypatch.setattr(runner, "run", noted)
    engine = Engine(runner, TOKENIZER, RuntimeConfig(max_total_tokens=1024, disable_radix_cache=True))
    receivers = [submit(engine, str(index), PROMPT[index:], SCORED) for index in range(6)]
    engine.start()
    for index, receiver in enumerate(receivers):
        receiver.wait()
        check_all(receiver, PROMPT[index:])
    engine.shutdown()
    assert sum(scored) == sum(len(PROMPT) - index - 1 for index in range(6))
    assert max(scored) <= 100


def test_scoring_alone_generates_nothing() -> None:
    with tiny_engine() as engine:
        receiver = submit(engine, "r", PROMPT, replace(SCORED, max_new_tokens=0))
        assert receiver.wait().reason == "length"
    assert (receiver.token_ids, receiver.text, receiver.outputs[-1].completion_tokens) == ([], "", 0)
    check_all(receiver, PROMPT)


def test_requests_of_all_kinds_in_one_batch_and_retracted() -> None:
    """A pool too small for all of them sends some back to the queue."""
    kinds = [
        replace(SCORED, max_new_tokens=40),
        replace(SCORED, max_new_tokens=40, logprobs=None, prompt_logprobs_start=None),
        replace(SCORED, max_new_tokens=40, temperature=1.0, seed=4, logprobs=0, repetition_penalty=1.3),
        replace(SCORED, max_new_tokens=40, prompt_logprobs_start=None, presence_penalty=1.0),
    ]
    prompts = [PROMPT[index:] for index in range(4)]
    with tiny_engine(
        max_total_tokens=250, page_size=1, chunked_prefill_size=32, schedule_conservativeness=0.01
    ) as engine:
        with held(engine):
            receivers = [submit(engine, str(index), prompts[index], kind) for index, kind in enumerate(kinds)]
        for receiver in receivers:
            assert receiver.wait().reason == "length"
        assert engine.stats().retractions
    with tiny_engine() as engine:
        for index, receiver in enumerate(receivers):
            alone = submit(engine, str(index), prompts[index], kinds[index])
            alone.wait()
            assert alone.token_ids == receiver.token_ids
    check_all(receivers[0], prompts[0])
    check_all(receivers[2], prompts[2], 0, count=0)
    check_all(receivers[3], prompts[3], None)
    assert not any(output.logprobs for output in receivers[1].outputs)


def test_logprobs_are_the_model_s_own_whatever_was_changed() -> None:
    biased = replace(SCORED, logit_bias=((65, 100.0),), temperature=0.3, seed=1, top_k=1)
    with tiny_engine() as engine:
        receiver = submit(engine, "r", PROMPT, biased)
        receiver.wait()
    assert receiver.token_ids == [65] * 6
    check_all(receiver, PROMPT)


def test_impossible_tokens_have_the_floor() -> None:
    runner = tiny_runner(CONFIG)
    head = runner.model.head

    def without_most(x_BE: torch.Tensor) -> torch.Tensor:
        logits_BV = head(x_BE)
        logits_BV[:, 2:] = -torch.inf
        return logits_BV

    runner.model.head = without_most
    engine = Engine(runner, TOKENIZER, RuntimeConfig(max_total_tokens=256))
    engine.start()
    receiver = submit(engine, "r", PROMPT, SCORED)
    receiver.wait()
    engine.shutdown()
    (first, *_) = [known for output in receiver.outputs for known in output.logprobs]
    assert [logprob for _, logprob in first.top][2] == LOGPROB_FLOOR
    prompt = receiver.outputs[0].prompt_logprobs
    assert prompt is not None
    assert prompt[1] is not None
    assert prompt[1].logprob == LOGPROB_FLOOR
