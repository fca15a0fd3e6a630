import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglk.engine.detokenizer import MAX_PENDING_TOKENS, WINDOW_TOKENS, Detokenizer
from sglk.models.dummy_tokenizer import dummy_tokenizer

TOKENIZER = dummy_tokenizer(320)
TEXT = "你好👩‍👩‍👧é"


def deltas(ids: list[int] | bytes, context: list[int] | bytes = b"") -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, list(context))
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_characters_come_whole() -> None:
    pieces = deltas(TEXT.encode())

    assert [piece for piece in pieces if piece] == list(TEXT)
    assert pieces[:3] == ["", "", "你"]


@given(st.text(max_size=80))
def test_valid_text_never_shows_a_replacement(text: str) -> None:
    text = text.replace("\ufffd", "")
    pieces = deltas(text.encode())

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.binary(max_size=120), st.binary(max_size=20))
@example(b"\xff\xe4\xbd\xff\xff\xff", b"")
@example(b"\xe4\xbd" * 30, b"")
@example(b"\xf0\x9f\x91" * 20, b"")
def test_any_bytes_join_to_the_decoded_whole(data: bytes, prompt: bytes) -> None:
    assert "".join(deltas(data, prompt + b".")) == TOKENIZER.decode(list(data))


@given(st.lists(st.integers(0, 319), max_size=100))
def test_special_and_unknown_tokens_leave_no_text(ids: list[int]) -> None:
    assert "".join(deltas(ids)) == TOKENIZER.decode(ids)


@pytest.mark.parametrize("cut", range(1, 4))
def test_answer_cut_inside_a_character_ends_like_the_decoded_whole(cut: int) -> None:
    data = ("ab" + "👩").encode()[: 2 + cut]

    assert "".join(deltas(data)) == TOKENIZER.decode(list(data)) == "ab\ufffd"


@pytest.mark.parametrize("invalid", [b"\xff", b"\x80", b"\xe4", b"\xe4\xbd", b"\xc3"])
def test_invalid_bytes_are_let_go(invalid: bytes) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    written = ""
    for count, token in enumerate(invalid * 40, start=1):
        written += detokenizer.push(token)
        pending = TOKENIZER.decode(list((invalid * 40)[:count]))[len(written) :]
        assert len(pending) <= MAX_PENDING_TOKENS
    assert written


def test_prompt_that_ends_inside_a_character_adds_nothing_to_the_answer() -> None:
    assert "".join(deltas(b"abc", "你".encode()[:2])) == "abc"


def test_cost_per_token_does_not_grow() -> None:
    class Meter:
        longest = 0

        def decode(self, ids: list[int]) -> str:
            self.longest = max(self.longest, len(ids))
            return TOKENIZER.decode(ids)

    meter = Meter()
    detokenizer = Detokenizer(meter)  # type: ignore[arg-type]
    for token in (TEXT.encode() + b"\xff\xff\xff\xff\xff") * 100:
        detokenizer.push(token)

    assert meter.longest <= WINDOW_TOKENS + MAX_PENDING_TOKENS
