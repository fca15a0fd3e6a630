"""Answers follow their grammar through batching, chunks, retraction and the way back to text."""

import json
import re
import threading
from dataclasses import replace

import pytest

from sglk.engine.grammar_compiler import Compiler
from sglk.engine.messages import Grammar, SamplingParams
from sglk.errors import RequestError
from tests.engine.receiving import TOKENIZER, Receiver, held, submit
from tests.engine.test_logprobs import PROMPT, tiny_engine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["é", "你好👩", "plain"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
JSON = Grammar("json_schema", json.dumps(SCHEMA))
GUIDED = SamplingParams(temperature=1.0, seed=1, grammar=JSON)


def check(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "kind", "sizes"}
    assert len(value["name"]) <= 6
    assert value["kind"] in ("é", "你好👩", "plain")
    assert len(value["sizes"]) <= 3
    assert all(0 <= size <= 99 for size in value["sizes"])


def test_answers_parse_whatever_is_drawn() -> None:
    with tiny_engine() as engine:
        receivers = [submit(engine, str(seed), PROMPT, replace(GUIDED, seed=seed)) for seed in range(12)]
        for receiver in receivers:
            assert receiver.wait().reason == "stop"
            check(receiver.text)
            assert not any("\ufffd" in output.text for output in receiver.outputs)
    assert len({receiver.text for receiver in receivers}) > 6


def test_neighbours_and_retraction_change_nothing() -> None:
    plain = SamplingParams(max_new_tokens=60, temperature=0.0, ignore_eos=True)
    with tiny_engine(
        max_total_tokens=250, page_size=1, chunked_prefill_size=32, schedule_conservativeness=0.01
    ) as engine:
        with held(engine):
            guided = [submit(engine, str(seed), PROMPT[seed:], replace(GUIDED, seed=seed)) for seed in range(4)]
            free = submit(engine, "free", PROMPT[30:], plain)
        for receiver in (*guided, free):
            receiver.wait()
        assert engine.stats().retractions
    with tiny_engine(disable_radix_cache=True) as engine:
        for seed, receiver in enumerate(guided):
            alone = submit(engine, "r", PROMPT[seed:], replace(GUIDED, seed=seed))
            alone.wait()
            assert alone.text == receiver.text
            check(receiver.text)
        alone = submit(engine, "r", PROMPT[30:], plain)
        alone.wait()
        assert alone.token_ids == free.token_ids


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_of_the_grammar_ends_the_answer(ignore_eos: bool) -> None:
    sampling = SamplingParams(temperature=0.0, grammar=Grammar("choice", '["yes", "no"]'), ignore_eos=ignore_eos)
    with tiny_engine() as engine:
        receiver = submit(engine, "r", PROMPT, sampling)
        finish = receiver.wait()
    assert receiver.text in ("yes", "no")
    assert finish.reason == "stop"
    assert finish.matched in {257, *TOKENIZER.eos_token_ids}


def test_limits_and_stop_strings_hold_within_a_grammar() -> None:
    letters = SamplingParams(temperature=1.0, seed=3, grammar=Grammar("regex", "[a-e]{20}"))
    with tiny_engine() as engine:
        whole, cut, stopped, longer = (
            submit(engine, name, PROMPT, sampling)
            for name, sampling in (
                ("whole", letters),
                ("cut", replace(letters, max_new_tokens=5)),
                ("stopped", replace(letters, stop=("b",))),
                ("longer", replace(letters, grammar=Grammar("regex", "[a-e]*"), min_new_tokens=30, max_new_tokens=60)),
            )
        )
        reasons = [receiver.wait().reason for receiver in (whole, cut, stopped, longer)]
    assert reasons[:3] == ["stop", "length", "stop"]
    assert re.fullmatch("[a-e]{20}", whole.text)
    assert cut.text == whole.text[:5]
    assert stopped.text == whole.text.partition("b")[0]
    assert len(longer.text) >= 30


def test_logprobs_do_not_know_of_the_grammar() -> None:
    with tiny_engine() as engine:
        sampling = SamplingParams(temperature=0.0, grammar=Grammar("regex", "abc"), logprobs=1)
        receiver = submit(engine, "r", PROMPT, sampling)
        receiver.wait()
    known = [each for output in receiver.outputs for each in output.logprobs]
    assert [each.token_id for each in known[:3]] == list(b"abc")
    assert any(each.top[0][0] != each.token_id for each in known)
    assert all(each.logprob < 0 for each in known)


def test_a_wrong_grammar_is_refused_before_it_is_queued() -> None:
    with tiny_engine() as engine:
        with pytest.raises(RequestError, match="unclosed group"):
            submit(engine, "r", PROMPT, SamplingParams(grammar=Grammar("regex", "(")))
        with pytest.raises(RequestError, match="unclosed group"):
            engine.prepare(Grammar("regex", "("))
        assert engine.stats().queued_requests == engine.stats().running_requests == 0


def test_compiling_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny_engine() as engine:
        compiling, release = threading.Event(), threading.Event()
        compile_ = Compiler.__call__

        def slowly(compiler: Compiler, grammar: Grammar) -> object:
            compiling.set()
            assert release.wait(120)
            return compile_(compiler, grammar)

        monkeypatch.setattr(Compiler, "__call__", slowly)
        guided: list[Receiver] = []
        thread = threading.Thread(target=lambda: guided.append(submit(engine, "slow", PROMPT, GUIDED)))
        thread.start()
        assert compiling.wait(120)
        plain = submit(engine, "plain", PROMPT, SamplingParams(max_new_tokens=4, ignore_eos=True))
        assert plain.wait().reason == "length"
        release.set()
        thread.join(120)
        guided[0].wait()
    check(guided[0].text)
