from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglk.bench.sse import SseParser

STREAM = (
    ": connected\n\n"
    'data: {"text": "a"}\n\n'
    'id: 7\nevent: message\ndata: {"text": "é—你好👩‍👧"}\n\n'
    ": keepalive\n\n"
    "data: first\ndata:second\ndata:  third\n\n"
    "retry: 10\n\n"
    "data: [DONE]\n\n"
)
EVENTS = ['{"text": "a"}', '{"text": "é—你好👩‍👧"}', "first\nsecond\n third", "[DONE]"]


def parse(chunks: list[bytes]) -> list[str]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_line_ending_gives_the_same_events(ending: str) -> None:
    assert parse([STREAM.replace("\n", ending).encode()]) == EVENTS


@given(cuts=st.lists(st.integers(0, 400)), ending=st.sampled_from(["\n", "\r\n", "\r"]))
def test_cuts_between_reads_change_nothing(cuts: list[int], ending: str) -> None:
    data = STREAM.replace("\n", ending).encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert parse([data[a:b] for a, b in pairwise(edges)]) == EVENTS


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_one_byte_at_a_time(ending: str) -> None:
    assert parse([bytes([byte]) for byte in STREAM.replace("\n", ending).encode()]) == EVENTS


def test_events_come_out_as_soon_as_they_are_whole() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b\n\nda") == ["a", "b"]
    assert parser.feed(b"ta: c\n") == []
    assert parser.feed(b"\n") == ["c"]


def test_a_last_event_without_its_empty_line_counts() -> None:
    assert parse([b"data: a\n\ndata: [DONE]"]) == ["a", "[DONE]"]


def test_byte_order_mark_is_skipped_once() -> None:
    assert parse(["\ufeffdata: a\n\n".encode()]) == ["a"]


def test_line_separators_inside_data_do_not_split_it() -> None:
    assert parse(["data: a\u2028b\x0bc\x85d\n\n".encode()]) == ["a\u2028b\x0bc\x85d"]
