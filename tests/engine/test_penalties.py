"""Counts of a request's tokens: the same however they were gathered."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglk.engine.messages import SamplingParams
from sglk.engine.penalties import Penalties

TOKENS = st.lists(st.integers(0, 200), max_size=150)


def offsets(penalties: Penalties) -> dict[int, float]:
    ids, _, offsets = penalties.changes()
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), offsets.tolist(), strict=True))


@given(prompt=TOKENS, answer=TOKENS, cuts=st.lists(st.integers(0, 300), max_size=5))
def test_offsets_are_those_of_the_whole_answer(prompt: list[int], answer: list[int], cuts: list[int]) -> None:
    tokens = prompt + answer
    penalties = Penalties(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), len(prompt))
    for cut in sorted(cuts):
        penalties.follow(tokens[: max(len(prompt), cut)])
    penalties.follow(tokens)
    penalties.follow(tokens)
    assert offsets(penalties) == {token: -(0.5 + 0.25 * count) for token, count in Counter(answer).items()}


@given(prompt=TOKENS, answer=TOKENS)
def test_repetition_counts_the_prompt_too(prompt: list[int], answer: list[int]) -> None:
    penalties = Penalties(SamplingParams(repetition_penalty=1.5), len(prompt))
    penalties.follow(prompt + answer)
    ids, factors, offsets = penalties.changes()
    assert sorted(ids.tolist()) == sorted(set(prompt + answer))
    assert (factors == np.float32(1.5)).all()
    assert not offsets.any()
