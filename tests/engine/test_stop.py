import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglk.engine.stop import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops)
    emitted = []
    for piece in pieces:
        emitted.append(matcher.push(piece))
        if matcher.matched is not None:
            return emitted, matcher.matched
    return [*emitted, matcher.flush()], None


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        (["DEF"], "ABC", "DEF"),
        (["C"], "AB", "C"),
        (["EF", "DEFG"], "ABCD", "EF"),
        (["DEFG", "EF"], "ABCD", "EF"),
        (["F", "EF"], "ABCD", "EF"),
        ([], "ABCDEFG", None),
        (["GH", "X"], "ABCDEFG", None),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_text_ends_before_the_first_completed_stop(stops: list[str], text: str, matched: str | None, size: int) -> None:
    pieces = ["ABCDEFG"[start : start + size] for start in range(0, 7, size)]

    emitted, found = run(stops, pieces)

    assert ("".join(emitted), found) == (text, matched)


def test_beginning_of_a_stop_waits_and_is_released_when_it_goes_on_otherwise() -> None:
    assert run(["<end>"], list("a<en<end")) == (["a", "", "", "", "<en", "", "", "", "<end"], None)


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=3), max_size=12))
def test_agrees_with_a_search_in_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [
        (end, text[:end].rindex(stop), stop)
        for end in range(1, len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    emitted, matched = run(stops, pieces)

    if not ends:
        assert ("".join(emitted), matched) == (text, None)
        return
    end, _, _ = min(ends)
    start = min(start for other, start, _ in ends if other == end)
    assert "".join(emitted) == text[:start]
    assert matched == text[start:end]


@given(st.text("ab", min_size=1, max_size=4), st.lists(st.text("abc", max_size=3), max_size=12))
def test_holds_back_no_more_than_may_become_a_stop(stop: str, pieces: list[str]) -> None:
    matcher = StopStrings([stop])
    emitted, seen = "", ""
    for piece in pieces:
        emitted += matcher.push(piece)
        seen += piece
        if matcher.matched is not None:
            return
        held = seen[len(emitted) :]
        assert seen == emitted + held
        assert stop.startswith(held)
