"""A real model in three processes says what it says in one, to the last bit."""

import pytest

from sglk import LLM
from sglk.engine.messages import SamplingParams
from sglk.llm import Completion

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small language model that had to fit into three processes, and",
    "def fibonacci(n: int) -> int:\n",
)
SAMPLING = SamplingParams(max_new_tokens=24, temperature=0.0, ignore_eos=True, logprobs=5, prompt_logprobs_start=0)


def answers(quantization: str | None, dtype: str, tp_size: int) -> list[Completion]:
    runtime = {"quantization": quantization, "dtype": dtype, "tp_size": tp_size, "max_total_tokens": 512}
    with LLM(model="smollm2", overrides=("profiles=none",), **runtime) as llm:
        return llm.generate(PROMPTS, SAMPLING)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("quantization", "dtype"), [("w8a8", "fp32"), (None, "bf16")])
def test_three_ranks_answer_as_one_to_the_last_bit(quantization: str | None, dtype: str) -> None:
    alone, ranks = (answers(quantization, dtype, tp_size) for tp_size in (1, 3))
    assert [answer.token_ids for answer in ranks] == [answer.token_ids for answer in alone]
    assert [answer.logprobs for answer in ranks] == [answer.logprobs for answer in alone]
    assert [answer.prompt_logprobs for answer in ranks] == [answer.prompt_logprobs for answer in alone]
    assert all(len(answer.logprobs) == SAMPLING.max_new_tokens for answer in ranks)
