"""What the caller of one request sees: text, tokens, counts and the reason for the end."""

import pytest

from sglk.engine.messages import SamplingParams
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import TOKENIZER, running, scripted, submit

TEXT = "你好👩‍👩‍👧é"


@pytest.mark.parametrize("stop", [(), ("nothing of it",)])
def test_split_characters_arrive_whole(stop: tuple[str, ...]) -> None:
    with running(scripted(TEXT)) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0, stop=stop))
        finish = receiver.wait()

    assert receiver.text == TEXT
    assert not any("\ufffd" in output.text for output in receiver.outputs)
    assert (finish.reason, finish.matched) == ("stop", 257)


def test_every_token_is_reported_when_it_is_made() -> None:
    with running(scripted(TEXT)) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0))
        receiver.wait()

    # The token that ends the answer counts, and has no text.
    assert receiver.token_ids == [*TEXT.encode(), 257]
    assert [output.completion_tokens for output in receiver.outputs] == list(range(1, len(TEXT.encode()) + 2))
    assert {output.prompt_tokens for output in receiver.outputs} == {2}


@pytest.mark.parametrize("length", range(1, 8))
def test_answer_cut_inside_a_character_flushes_its_tail(length: int) -> None:
    with running(scripted(TEXT)) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0, max_new_tokens=length))
        finish = receiver.wait()

    assert receiver.text == TOKENIZER.decode(list(TEXT.encode()[:length]))
    assert finish.reason == "length"


@pytest.mark.parametrize(
    ("stop", "text", "matched"),
    [(("DEF",), "ABC", "DEF"), (("C",), "AB", "C"), (("EF", "DEFG"), "ABCD", "EF"), ((), "ABCDEFG", 257)],
)
def test_stop_strings_over_several_tokens(stop: tuple[str, ...], text: str, matched: str | int) -> None:
    with running(scripted("ABCDEFG")) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0, stop=stop))
        finish = receiver.wait()

    assert receiver.text == text
    assert (finish.reason, finish.matched) == ("stop", matched)
    sent = ""
    for output in receiver.outputs:
        sent += output.text
        assert text.startswith(sent)


def test_stop_string_on_the_last_allowed_token_is_a_stop() -> None:
    with running(scripted("ABCDEFG")) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0, stop=("EF",), max_new_tokens=6))

        assert receiver.wait().reason == "stop"
    assert receiver.text == "ABCD"


def test_beginning_of_a_stop_string_is_part_of_an_answer_that_ends_before_it() -> None:
    with running(scripted("ABCDE")) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0, stop=("DEF",)))
        receiver.wait()

    assert receiver.text == "ABCDE"


@pytest.mark.parametrize(("least", "text"), [(0, "A"), (2, "ABC"), (3, "ABC"), (4, "ABCBC"), (6, "ABCBCBC")])
def test_stop_strings_in_the_first_tokens_are_ignored(least: int, text: str) -> None:
    with running(scripted("ABCBCBCBC")) as engine:
        sampling = SamplingParams(temperature=0, stop=("BC",), min_new_tokens=least)
        receiver = submit(engine, "r", "hi", sampling)
        receiver.wait()

    assert receiver.text == text


def test_stop_token_ends_the_answer_even_when_eos_is_ignored() -> None:
    with running(scripted("ABCDEFG")) as engine:
        sampling = SamplingParams(temperature=0, stop_token_ids=(ord("D"),), ignore_eos=True)
        receiver = submit(engine, "r", "hi", sampling)
        finish = receiver.wait()

    assert (receiver.text, finish.matched) == ("ABC", ord("D"))
    assert receiver.token_ids == list(b"ABCD")


def test_ignored_end_of_sequence_goes_on_without_text() -> None:
    with running(scripted("AB")) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0, max_new_tokens=5, ignore_eos=True))
        finish = receiver.wait()

    assert (receiver.text, receiver.token_ids, finish.reason) == ("AB", [65, 66, 257, 257, 257], "length")


def test_chat_end_of_the_tokenizer_ends_the_answer_too() -> None:
    (end,) = TOKENIZER.eos_token_ids - {257}
    with running(ScriptedRunner(script=lambda prompt: [65, end])) as engine:
        receiver = submit(engine, "r", "hi", SamplingParams(temperature=0))

        assert receiver.wait().matched == end
    assert receiver.text == "A"


@pytest.mark.parametrize("page_size", [1, 16])
def test_cached_tokens_are_reported(page_size: int) -> None:
    with running(page_size=page_size) as engine:
        receivers = []
        for name in "abc":
            receivers.append(submit(engine, name, "x" * 48))
            receivers[-1].wait()

    cached = [receiver.outputs[-1].cached_tokens for receiver in receivers]
    assert cached == ([0, 47, 47] if page_size == 1 else [0, 32, 32])
    assert receivers[0].token_ids == receivers[1].token_ids == receivers[2].token_ids


def test_answer_is_limited_to_the_room_that_is_left() -> None:
    with running() as engine:
        unlimited = submit(engine, "none", "x" * 250, SamplingParams(temperature=0, ignore_eos=True))
        limited = submit(engine, "more", "y" * 250, SamplingParams(temperature=0, ignore_eos=True, max_new_tokens=50))

        assert unlimited.wait().reason == limited.wait().reason == "length"
    assert len(unlimited.token_ids) == len(limited.token_ids) == 6
