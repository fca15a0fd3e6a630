"""What a request changes about its logits: equal to its definition, and to that of transformers where there is one."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor
from transformers import MinNewTokensLengthLogitsProcessor as MinNewTokens
from transformers import SequenceBiasLogitsProcessor as Bias

from sglk.backends.cpu import CpuBackend
from sglk.engine.batch import BatchRow, RowFailure, RowResult
from sglk.engine.grammar import Grammars
from sglk.engine.logits import logit_rules
from sglk.engine.messages import Grammar, SamplingParams
from sglk.engine.sampler import Sampler
from sglk.models.dummy_tokenizer import dummy_tokenizer

VOCABULARY = 320
EOS = 257
STOPS = frozenset({EOS})
PROMPT = [5, 6, 7, 6, EOS, 300]
GRAMMARS = Grammars(dummy_tokenizer(VOCABULARY), VOCABULARY, STOPS)


def sampler(dtype: torch.dtype = torch.float32) -> Sampler:
    return Sampler(CpuBackend(num_threads=1), dtype, VOCABULARY)


def row(answer: Sequence[int] = (), grammar: Grammar | None = None, seed: int = 0, **params: Any) -> BatchRow:
    """A decode row after PROMPT and `answer`."""
    sampling = SamplingParams(grammar=grammar, **{"temperature": 0.0, **params})
    guide = None if grammar is None else GRAMMARS.guide(grammar)
    tokens = [*PROMPT, *answer]
    return BatchRow(
        request_id="r",
        input_ids=tokens[-1:],
        start=len(tokens) - 1,
        pages=[0],
        sampling=sampling,
        seed=seed,
        num_generated=len(answer),
        samples=True,
        tokens=tokens,
        rules=logit_rules(sampling, len(PROMPT), STOPS, guide),
    )


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def changed(one: BatchRow, batch: torch.Tensor) -> torch.Tensor:
    """Return the logits that the row's token is chosen by."""
    assert one.rules is not None
    changed_1V = batch.clone()
    (result,) = sampler()(changed_1V, [one])
    assert result == int(changed_1V.argmax())
    return changed_1V


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    answer, batch = [9, 9, 6, 11], logits()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + answer]), batch.clone())
    torch.testing.assert_close(changed(row(answer, repetition_penalty=penalty), batch), expected)


def test_presence_and_frequency_are_those_of_openai() -> None:
    answer, batch = [9, 9, 6, 11, 9], logits()
    expected = batch.clone()
    for token in range(VOCABULARY):
        count = answer.count(token)
        expected[0, token] -= 0.7 * (count > 0) + -0.4 * count
    torch.testing.assert_close(changed(row(answer, presence_penalty=0.7, frequency_penalty=-0.4), batch), expected)


def test_all_penalties_and_biases_add_up_in_order() -> None:
    answer, batch = [9, 9, 6], logits()
    params = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5}
    biases = {9: 3.0, 100: -100.0, 7: 0.25}
    expected = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([PROMPT + answer]), batch.clone())
    expected[0, 9] -= 2.0
    expected[0, 6] -= 1.5
    expected = Bias([[[token], bias] for token, bias in biases.items()])(torch.tensor([[1]]), expected)
    torch.testing.assert_close(changed(row(answer, logit_bias=tuple(biases.items()), **params), batch), expected)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_the_end_is_held_back_as_in_transformers(length: int) -> None:
    answer, batch = [9] * length, logits()
    batch[0, EOS] = 50.0
    oracle = MinNewTokens(len(PROMPT), 2, EOS, device="cpu")
    expected = oracle(torch.tensor([PROMPT + answer]), batch.clone())
    assert (expected[0, EOS] == -torch.inf) == (length < 2)
    torch.testing.assert_close(changed(row(answer, min_new_tokens=2), batch), expected)


def test_min_p_is_that_of_transformers() -> None:
    batch = logits(seed=3).expand(2000, -1)
    rows = [row([1] * place, temperature=1.5, min_p=0.2, seed=9) for place in range(2000)]
    kept = LogitsProcessorList([MinPLogitsWarper(0.2)])(torch.tensor([[1]]), batch[:1] / 1.5)
    drawn = torch.tensor(sampler()(batch.clone(), rows))
    shares = torch.bincount(drawn, minlength=VOCABULARY) / 2000
    assert set(drawn.tolist()) == set(kept[0].isfinite().nonzero().flatten().tolist())
    torch.testing.assert_close(shares, kept[0].softmax(-1), atol=0.04, rtol=0)


def choice(*texts: str) -> Grammar:
    return Grammar("choice", json.dumps(texts))


def test_a_grammar_masks_all_else() -> None:
    after = changed(row(list(b"y"), choice("yes", "yo")), logits())
    assert after[0].isfinite().nonzero().flatten().tolist() == [ord("e"), ord("o")]


def test_a_grammar_beats_a_bias() -> None:
    after = changed(row([], choice("yes"), logit_bias=((5, 100.0),)), logits())
    assert int(after.argmax()) == ord("y")


def test_the_end_of_a_grammar_is_held_back_while_it_can_go_on() -> None:
    ends = frozenset({EOS})
    more = changed(row(list(b"a"), Grammar("regex", "a+"), min_new_tokens=3), logits())
    done = changed(row(list(b"ab"), choice("ab"), min_new_tokens=3), logits())
    free = changed(row(list(b"aaa"), Grammar("regex", "a+"), min_new_tokens=3), logits())
    allowed = [set(one[0].isfinite().nonzero().flatten().tolist()) for one in (more, done, free)]
    assert allowed == [{ord("a")}, ends, {ord("a"), EOS}]


def test_an_answer_that_leaves_its_grammar_fails_alone() -> None:
    rows = [row(), row(list(b"x"), choice("yes")), row(temperature=1.0)]
    first, failed, last = sampler()(logits(3), rows)
    assert isinstance(failed, RowFailure)
    assert "grammar" in failed.message
    assert [first, last] == [sampler()(logits(3)[place : place + 1], [rows[place]])[0] for place in (0, 2)]


def mixed_rows() -> list[BatchRow]:
    """Rows of every kind, with fresh state."""
    answer = [9, 9, 6, 11, 200]
    return [
        row(answer),
        row(answer, temperature=1e-9, repetition_penalty=1.5),
        row(answer, temperature=1e-4, logit_bias=((9, -100.0),)),
        row(answer, temperature=1.0, seed=1, min_p=0.1, top_p=1e-9),
        row(answer, temperature=2.0, seed=2, top_k=10**6, frequency_penalty=2.0),
        row(answer, temperature=2.0, seed=3, top_k=1, presence_penalty=-2.0),
        row(list(b"ab"), Grammar("regex", "[a-f]*"), temperature=1.0, seed=4, min_new_tokens=5),
        row(answer, temperature=0.7, seed=5, logprobs=5, logit_bias=((7, 100.0),)),
        row([], temperature=1.0, seed=6, logprobs=0, repetition_penalty=0.1, min_new_tokens=1),
        row(answer, temperature=1.0, seed=7),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_row_of_a_mixed_batch_equals_that_row_alone(dtype: torch.dtype) -> None:
    count = len(mixed_rows())
    batch = logits(count, seed=5).to(dtype)
    batch[:, ::3] = -torch.inf
    choose = sampler(dtype)
    together = choose(batch.clone(), mixed_rows())
    alone: list[RowResult] = []
    for place, one in enumerate(mixed_rows()):
        alone += choose(batch[place : place + 1].clone(), [one])
    assert together == alone
    assert not any(isinstance(result, RowFailure) for result in together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("penalty", [1e-30, 2.0])
def test_extreme_penalties_leave_numbers(dtype: torch.dtype, penalty: float) -> None:
    rows = [
        row([9] * 50, repetition_penalty=penalty, frequency_penalty=2.0, temperature=temperature)
        for temperature in (0.0, 1.0)
    ]
    batch = (logits(2) * 10).to(dtype)
    assert all(isinstance(token, int) for token in sampler(dtype)(batch, rows))
