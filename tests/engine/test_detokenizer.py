from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglk.engine.detokenizer import (
    MAX_PENDING_TOKENS,
    WINDOW_TOKENS,
    JoinedBytes,
    WindowDetokenizer,
    detokenizer_for,
)
from sglk.models.byte_level import byte_tokenizer
from sglk.models.dummy_tokenizer import dummy_tokenizer
from sglk.models.tokenizer import Tokenizer

TOKENIZER = dummy_tokenizer(320)
Made = type[JoinedBytes] | type[WindowDetokenizer]
TEXT = "你好👩‍👩‍👧é"


BOTH = pytest.mark.parametrize("made", [JoinedBytes, WindowDetokenizer])


def deltas(made: Made, ids: list[int] | bytes, context: list[int] | bytes = b"") -> list[str]:
    detokenizer = made(TOKENIZER, list(context))
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@BOTH
def test_characters_come_whole(made: Made) -> None:
    pieces = deltas(made, TEXT.encode())

    assert [piece for piece in pieces if piece] == list(TEXT)
    assert pieces[:3] == ["", "", "你"]


@BOTH
@given(st.text(max_size=80))
def test_valid_text_never_shows_a_replacement(made: Made, text: str) -> None:
    text = text.replace("\ufffd", "")
    pieces = deltas(made, text.encode())

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@BOTH
@given(st.binary(max_size=120), st.binary(max_size=20))
@example(b"\xff\xe4\xbd\xff\xff\xff", b"")
@example(b"\xe4\xbd" * 30, b"")
@example(b"\xf0\x9f\x91" * 20, b"")
def test_any_bytes_join_to_the_decoded_whole(made: Made, data: bytes, prompt: bytes) -> None:
    assert "".join(deltas(made, data, prompt + b".")) == TOKENIZER.decode(list(data))


@BOTH
@given(st.lists(st.integers(0, 319), max_size=100))
def test_special_and_unknown_tokens_leave_no_text(made: Made, ids: list[int]) -> None:
    assert "".join(deltas(made, ids)) == TOKENIZER.decode(ids)


@BOTH
@pytest.mark.parametrize("cut", range(1, 4))
def test_answer_cut_inside_a_character_ends_like_the_decoded_whole(made: Made, cut: int) -> None:
    data = ("ab" + "👩").encode()[: 2 + cut]

    assert "".join(deltas(made, data)) == TOKENIZER.decode(list(data)) == "ab\ufffd"


@BOTH
@pytest.mark.parametrize("invalid", [b"\xff", b"\x80", b"\xe4", b"\xe4\xbd", b"\xc3"])
def test_invalid_bytes_are_let_go(made: Made, invalid: bytes) -> None:
    detokenizer = made(TOKENIZER)
    written = ""
    for count, token in enumerate(invalid * 40, start=1):
        written += detokenizer.push(token)
        pending = TOKENIZER.decode(list((invalid * 40)[:count]))[len(written) :]
        assert len(pending) <= MAX_PENDING_TOKENS
    assert written


@BOTH
def test_prompt_that_ends_inside_a_character_adds_nothing_to_the_answer(made: Made) -> None:
    assert "".join(deltas(made, b"abc", "你".encode()[:2])) == "abc"


def test_cost_per_token_does_not_grow_with_the_answer() -> None:
    class Meter:
        longest = 0

        def decode(self, ids: list[int]) -> str:
            self.longest = max(self.longest, len(ids))
            return TOKENIZER.decode(ids)

    meter = Meter()
    detokenizer = WindowDetokenizer(meter)  # type: ignore[arg-type]
    for token in (TEXT.encode() + b"\xff\xff\xff\xff\xff") * 100:
        detokenizer.push(token)

    assert meter.longest <= WINDOW_TOKENS + MAX_PENDING_TOKENS


def test_a_token_of_a_byte_level_vocabulary_is_looked_at_once() -> None:
    class Watched(Tokenizer):
        looked_at: list[int] = []

        def shown_bytes(self, token_id: int) -> bytes:
            self.looked_at.append(token_id)
            return super().shown_bytes(token_id)

        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            raise AssertionError("nothing is decoded again")

    watched = Watched(byte_tokenizer())
    detokenizer = detokenizer_for(watched, list(b"prompt"))

    assert "".join(map(detokenizer.push, TEXT.encode() * 20)) == TEXT * 20
    assert watched.looked_at == list(TEXT.encode() * 20)
