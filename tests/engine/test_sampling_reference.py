"""Every sampling option at once under a real engine, against a reference that has only the rules and the logits.

The logits are those that transformers has for the finished answer.
"""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sglk.engine.messages import SamplingParams
from sglk.models.byte_level import EOS_ID
from sglk.testing.tiny import tiny_config
from tests.engine.receiving import TOKENIZER, held, submit
from tests.engine.test_model_equality import real_engine
from tests.models.greedy import transformers_model

WORD = (1 << 64) - 1


def uniform(seed: int, place: int) -> float:
    """SplitMix64's finaliser twice, in plain integers; the upper 24 bits."""

    def mix(state: int) -> int:
        state = state + 0x9E3779B97F4A7C15 & WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
        return state ^ state >> 31

    return (mix(mix(seed & WORD) + place & WORD) >> 40) / 2**24


def end_ids(params: SamplingParams) -> set[int]:
    return {*params.stop_token_ids, *(() if params.ignore_eos else (EOS_ID, *TOKENIZER.eos_token_ids))}


def next_token(
    logits: npt.NDArray[np.float64], prompt: Sequence[int], answer: Sequence[int], params: SamplingParams
) -> tuple[int, float]:
    """Return the token, and how far the draw is from another one."""
    changed = logits.copy()
    for token in {*prompt, *answer}:
        penalty = params.repetition_penalty
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token in set(answer):
        changed[token] -= params.presence_penalty + params.frequency_penalty * list(answer).count(token)
    for token, bias in params.logit_bias:
        changed[token] += bias
    if len(answer) < params.min_new_tokens:
        changed[list(end_ids(params))] = -np.inf
    likeliest = sorted(range(len(changed)), key=lambda token: -changed[token])
    if params.temperature <= 1e-4 or params.top_k == 1:
        return likeliest[0], float(changed[likeliest[0]] - changed[likeliest[1]])
    probs = np.exp((changed - changed.max()) / params.temperature)
    kept = likeliest if params.top_k < 0 else likeliest[: params.top_k]
    before = np.cumsum(probs[kept]) - probs[kept]
    if params.top_p < 1:
        kept = [token for token, sum_ in zip(kept, before, strict=True) if sum_ < params.top_p * probs[kept].sum()]
    kept = sorted(token for token in kept if probs[token] >= params.min_p * probs.max())
    bounds = np.cumsum(probs[kept]) / probs[kept].sum()
    drawn = uniform(params.seed or 0, len(answer))
    return kept[int(np.searchsorted(bounds, drawn, side="right"))], float(np.abs(bounds - drawn).min())


def requests(count: int) -> list[tuple[list[int], SamplingParams]]:
    drawn = random.Random(11)
    stem = drawn.choices(range(256), k=40)

    def one() -> tuple[list[int], SamplingParams]:
        pick = drawn.choice
        params = SamplingParams(
            max_new_tokens=pick((8, 40)),
            min_new_tokens=pick((0, 6)),
            temperature=pick((0.0, 1e-5, 0.3, 1.0, 1.7)),
            top_p=pick((1.0, 1.0, 0.9, 0.5, 0.05)),
            top_k=pick((-1, -1, 1, 5, 40, 10**6)),
            min_p=pick((0.0, 0.0, 0.05, 0.3)),
            presence_penalty=pick((0.0, 1.5, -1.0)),
            frequency_penalty=pick((0.0, 0.7, -0.5)),
            repetition_penalty=pick((1.0, 1.3, 0.8)),
            logit_bias=pick(((), ((65, 5.0), (66, -100.0), (EOS_ID, 3.0)))),
            seed=drawn.randrange(-(2**40), 2**70),
            stop_token_ids=pick(((), (65, 100))),
            ignore_eos=pick((True, False)),
        )
        return stem[: drawn.randrange(1, 40)] + drawn.choices(range(256), k=drawn.randrange(15)), params

    return [one() for _ in range(count)]


@pytest.mark.slow
def test_every_token_is_the_one_that_the_rules_give() -> None:
    asked = requests(48)
    runtime = {"max_total_tokens": 176, "page_size": 1, "chunked_prefill_size": 32, "schedule_conservativeness": 0.05}
    with real_engine(**runtime) as engine:
        with held(engine):
            receivers = [submit(engine, str(index), *one) for index, one in enumerate(asked)]
        for receiver in receivers:
            receiver.wait()
        stats = engine.stats()
    assert stats.retractions > 0
    assert stats.cached_prompt_tokens > 0

    model = transformers_model(tiny_config())
    for (prompt, params), receiver in zip(asked, receivers, strict=True):
        answer = receiver.token_ids
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0].double().numpy()
        for place, token in enumerate(answer):
            wanted, margin = next_token(logits[len(prompt) - 1 + place], prompt, answer[:place], params)
            assert token == wanted or margin < 1e-5, (place, params)
        ended = answer[-1] in end_ids(params)
        assert receiver.wait().reason == ("stop" if ended else "length")
        assert ended or len(answer) == params.max_new_tokens
        assert not end_ids(params) & set(answer[:-1])
