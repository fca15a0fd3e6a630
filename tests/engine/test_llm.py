import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglk import LLM, SamplingParams
from sglk.engine.messages import Grammar
from sglk.errors import ConfigError, RequestError
from sglk.testing.tiny import CHATML, write_tiny_model
from tests.waiting import wait_until

GREEDY = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "it's a model", chat_template=CHATML)
    with LLM(str(folder), max_total_tokens=512, num_threads=1, schedule_policy="lpm", kv_cache_dtype="auto") as llm:
        yield llm


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["hello", "world", "a longer prompt"]
    together = llm.generate(prompts, GREEDY)

    assert [completion.prompt_ids for completion in together] == [tuple(prompt.encode()) for prompt in prompts]
    assert [llm.generate(prompt, GREEDY)[0].token_ids for prompt in prompts] == [one.token_ids for one in together]
    assert all(len(completion.token_ids) == 6 for completion in together)
    assert llm.engine.runtime.schedule_policy == "lpm"


def test_prompts_may_be_token_ids(llm: LLM) -> None:
    text, ids, several = llm.generate("hello", GREEDY), llm.generate(list(b"hello"), GREEDY), [list(b"hello"), "hello"]

    assert text[0].token_ids == ids[0].token_ids
    assert [completion.token_ids for completion in llm.generate(several, GREEDY)] == [text[0].token_ids] * 2


def test_where_nobody_says_how_far_128_tokens_are_enough(llm: LLM) -> None:
    answers = llm.generate("hello", n=4) + llm.chat([{"role": "user", "content": "hi"}], n=4)
    assert all(0 < len(answer.token_ids) <= 128 for answer in answers)


def test_logprobs_come_with_the_answer(llm: LLM) -> None:
    scored = SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs_start=1)
    (completion,) = llm.generate("hello", scored)

    assert [known.token_id for known in completion.logprobs] == list(completion.token_ids)
    assert [known.top[0][0] for known in completion.logprobs] == list(completion.token_ids)
    assert [known and known.token_id for known in completion.prompt_logprobs] == [None, *b"llo"]


def test_answers_follow_a_grammar(llm: LLM) -> None:
    (completion,) = llm.generate("hello", SamplingParams(grammar=Grammar("choice", '["yes", "no"]'), seed=1))

    assert completion.text in ("yes", "no")


def test_each_prompt_may_have_its_own_sampling(llm: LLM) -> None:
    short = SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True)
    completions = llm.generate(["hello", "hello"], [GREEDY, short])

    assert [len(completion.token_ids) for completion in completions] == [6, 2]
    assert completions[0].finish is not None
    assert completions[0].finish.reason == "length"
    with pytest.raises(RequestError, match="2 prompts and 1 sampling"):
        llm.generate(["hello", "hello"], [GREEDY])


def test_refused_prompt_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(RequestError, match="empty"):
        llm.generate(["fine", ""], GREEDY)

    assert llm.generate("hello", GREEDY)[0].finish is not None
    stats = llm.engine.stats()
    assert (stats.running_requests, stats.queued_requests) == (0, 0)


@pytest.mark.parametrize(
    "prompts",
    [[1, "a", 2], ["a", 5], [1, 2.5], [[1, 2], ["a"]], b"abc", 5, None, [None], [[None]], [1, None], {"a": 1}, [True]],
    ids=repr,
)
def test_what_is_neither_text_nor_token_ids_is_refused_in_one_line(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match=r"^a prompt must be a text or a list of token ids, got .+$"):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize("sampling", [5, [5], "greedy", {"max_new_tokens": 3}], ids=repr)
def test_what_is_no_sampling_is_refused_in_one_line(llm: LLM, sampling: Any) -> None:
    with pytest.raises(RequestError, match="sampling"):
        llm.generate("hello", sampling)


def test_half_of_a_surrogate_pair_is_no_text(llm: LLM) -> None:
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        llm.generate(["fine", "a\ud800"], GREEDY)


def test_arrays_of_token_ids_are_prompts(llm: LLM) -> None:
    expected = llm.generate("hello", GREEDY)[0].token_ids
    ids = np.array(list(b"hello"))

    assert [completion.token_ids for completion in llm.generate(ids, GREEDY)] == [expected]
    assert [completion.token_ids for completion in llm.generate([ids, ids], GREEDY)] == [expected] * 2


def test_unknown_runtime_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match="page_sise"):
        LLM("smollm2", page_sise=4)


def test_n_answers_to_a_prompt_differ_and_follow_its_seed(llm: LLM) -> None:
    seeded = SamplingParams(max_new_tokens=8, seed=7, ignore_eos=True)
    answers = [one.token_ids for one in llm.generate(["ab", "c"], seeded, n=3)]

    assert len(answers) == len(set(answers)) == 6
    assert [one.token_ids for one in llm.generate(["ab", "c"], seeded, n=3)] == answers
    assert [one.token_ids for one in llm.generate("ab", seeded)] == answers[:1]
    with pytest.raises(RequestError, match="n=0 is not allowed"):
        llm.generate("ab", seeded, n=0)


def test_a_chat_is_the_prompt_that_its_template_makes(llm: LLM) -> None:
    hello = [{"role": "user", "content": "hi"}]
    (answer,) = llm.chat(hello, GREEDY)

    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer.prompt_ids == tuple(llm.engine.tokenizer.encode(prompt, add_special_tokens=False))
    assert [one.token_ids for one in llm.chat([hello, hello], GREEDY)] == [answer.token_ids] * 2
    without = prompt.removesuffix("<|im_start|>assistant\n")
    bare = llm.chat(hello, GREEDY, add_generation_prompt=False)[0]
    assert bare.prompt_ids == tuple(llm.engine.tokenizer.encode(without, add_special_tokens=False))


def test_no_chats_have_no_answers(llm: LLM) -> None:
    assert llm.chat([]) == []


@pytest.mark.parametrize("messages", ["hi", [5], [[]], [[{"content": "hi"}]], [{"role": "user", "content": 5}]])
def test_what_is_no_chat_is_refused_in_one_line(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=r"^[^\n]+$"):
        llm.chat(messages, GREEDY)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_is_told_that_it_has_no_engine(llm: LLM) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate("hello", GREEDY)
        except RequestError as error:
            os.write(tell, str(error).encode())
        finally:
            llm.engine.shutdown()
            os._exit(0)
    os.close(tell)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(told) as answer:
        assert "forked from the one that runs the engine" in answer.read()
    assert llm.generate("hello", GREEDY)[0].token_ids


@pytest.mark.parametrize("on_its_own_thread", [False, True])
def test_the_engine_stops_when_nothing_refers_to_it(tmp_path: Path, on_its_own_thread: bool) -> None:
    references = [LLM(write_tiny_model(tmp_path), max_total_tokens=64, num_threads=1)]
    engine = references[0].engine
    if on_its_own_thread:
        engine._inbox.post(references.clear)
    else:
        references.clear()
    engine._thread.join(120)
    assert not engine.is_alive
    assert engine.failure is None


@pytest.mark.parametrize("settings", [{}, {"tp_size": 2}])
def test_what_a_closed_engine_held_is_free_when_nothing_refers_to_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    llm = LLM(write_tiny_model(tmp_path), max_total_tokens=64, num_threads=1, **settings)
    llm.generate("hello", GREEDY)
    runner = weakref.ref(llm.engine._runner)
    gc.collect()
    gc.disable()
    try:
        llm.close()
        del llm
        # By reference counts alone, once threads that were at their end are over.
        wait_until(lambda: runner() is None)
    finally:
        gc.enable()
