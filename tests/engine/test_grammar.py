"""A guide allows what its grammar allows, whatever the vocabulary cuts texts into."""

import json
import re
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglk.engine import grammar as module
from sglk.engine.grammar import Grammars
from sglk.engine.grammar_compiler import Compiler
from sglk.engine.guide import Guide
from sglk.engine.messages import Grammar, GrammarKind
from sglk.errors import RequestError
from sglk.models.byte_level import EOS_ID, IM_END_ID
from sglk.models.dummy_tokenizer import dummy_tokenizer

TOKENIZER = dummy_tokenizer(320)
ENDS = {EOS_ID, IM_END_ID}
GRAMMARS = Grammars(TOKENIZER, 320, ENDS)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def allowed(guide: Guide) -> set[int]:
    mask = guide.allowed()
    return {token for token in range(320) if mask[token // 32] >> (token % 32) & 1}


def after(grammar: Grammar, answer: str | Sequence[int]) -> set[int]:
    """Return the tokens that may follow `answer`."""
    guide = GRAMMARS.guide(grammar)
    guide.follow(list(answer.encode() if isinstance(answer, str) else answer), 0)
    return allowed(guide)


def accepts(grammar: Grammar, text: str) -> bool:
    """Return whether `text` is a complete answer."""
    guide, tokens = GRAMMARS.guide(grammar), list(text.encode())
    for place, token in enumerate(tokens):
        if token not in allowed(guide):
            return False
        guide.follow(tokens[: place + 1], 0)
    return allowed(guide) >= ENDS


def test_a_choice_is_made_token_by_token() -> None:
    choice = Grammar("choice", json.dumps(["yes", "yeah", "é"]))
    assert after(choice, "") == {ord("y"), "é".encode()[0]}
    assert after(choice, "ye") == {ord("s"), ord("a")}
    assert after(choice, "é".encode()[:1]) == {"é".encode()[1]}
    assert after(choice, "yes") == ENDS


def test_choices_may_be_many_and_odd() -> None:
    texts = ["👩‍👩‍👧é", 'quote " backslash \\ slash /', "two\nlines\t", " ", "a|b", "(?i)x", *map(str, range(4000))]
    choice = Grammar("choice", json.dumps(texts))
    assert all(accepts(choice, text) for text in texts[:20])
    assert not any(accepts(choice, text) for text in ("quote", "a", "X", "4000", "\\n"))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"[a-c]+\d{2}", ["abc12", "a00", "a1", "d12", "abc123", ""]),
        (r"(yes|no)?", ["yes", "no", "", "maybe"]),
        (r"\d{3}-\d{4}", ["555-1234", "555-123", "5551234"]),
        (r"[^x]*", ["你好👩", "x", "axb"]),
    ],
)
def test_a_regex_matches_the_whole_answer(pattern: str, texts: list[str]) -> None:
    for text in texts:
        assert accepts(Grammar("regex", pattern), text) == bool(re.fullmatch(pattern, text)), text


def test_ebnf_may_recurse() -> None:
    brackets = Grammar("ebnf", 'root ::= "(" root ")" | "x"')
    assert accepts(brackets, "((x))")
    assert not accepts(brackets, "((x)")
    assert not accepts(brackets, "x)")


@settings(max_examples=25, deadline=None)
@given(
    name=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=12),
    age=st.integers(0, 10**6),
    indent=st.sampled_from([None, 2]),
)
def test_a_schema_takes_what_it_describes(name: str, age: int, indent: int | None) -> None:
    schema = Grammar("json_schema", json.dumps(PERSON))
    assert accepts(schema, json.dumps({"name": name, "age": age}, indent=indent, ensure_ascii=False))
    assert not accepts(schema, json.dumps({"name": age, "age": name}))
    assert not accepts(schema, json.dumps({"name": name, "age": age, "more": 1}))


def test_special_tokens_are_no_text() -> None:
    assert after(Grammar("regex", ".*"), "ab") & {256, 257, 258, 259} == ENDS
    # Padding of the vocabulary neither.
    assert max(after(Grammar("regex", ".*"), "ab")) < 260


def test_a_repeated_step_changes_nothing() -> None:
    guide, tokens = GRAMMARS.guide(Grammar("regex", "abcd")), [7, 7, 7, *b"ab"]
    for _ in range(3):
        guide.follow(tokens, 3)
        assert allowed(guide) == {ord("c")}


def test_guides_of_one_grammar_are_independent() -> None:
    first, second = (GRAMMARS.guide(Grammar("regex", "abcd")) for _ in range(2))
    first.follow(list(b"abc"), 0)
    assert (allowed(first), allowed(second)) == ({ord("d")}, {ord("a")})


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "(", "unclosed group"),
        ("regex", "a{5,2}", "invalid repetition"),
        ("json_schema", "{", "not JSON"),
        ("json_schema", "5", "object or boolean"),
        ("json_schema", '{"type": "foo"}', "foo"),
        ("json_schema", '{"$ref": "#/nope"}', "nope"),
        ("json_schema", '{"$ref": "http://localhost/x"}', "retriev"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
        ("json_schema", '{"$ref": "#"}', "no text fits it"),
        ("json_schema", "[" * 100_000, "nested too deeply"),
        ("choice", "[]", "at least one"),
        ("choice", "5", "list"),
        ("choice", "[1, 2]", "list"),
        ("choice", '{"a": 1}', "list"),
        ("choice", '["a", ""]', "empty"),
        ("ebnf", "(((", "Lark"),
    ],
)
def test_what_is_no_grammar_is_refused_in_one_line(kind: GrammarKind, text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        GRAMMARS.guide(Grammar(kind, text))
    assert (caught.value.param, caught.value.status) == (kind, 400)
    assert "\n" not in str(caught.value)


def test_a_refused_grammar_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(RequestError):
            GRAMMARS.guide(Grammar("regex", "("))


def test_the_latest_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    compiled = []
    compile_ = Compiler.__call__
    monkeypatch.setattr(
        Compiler, "__call__", lambda self, grammar: compiled.append(grammar.text) or compile_(self, grammar)
    )
    grammars = Grammars(TOKENIZER, 320, ENDS)
    for text in "abacabc":
        grammars.guide(Grammar("regex", text))
    assert "".join(compiled) == "abcbc"


def test_without_the_library_the_refusal_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'sglk\[guided\]'") as caught:
        Grammars(TOKENIZER, 320, ENDS).guide(Grammar("regex", "a"))
    assert (caught.value.param, caught.value.status) == ("regex", 400)


def test_a_model_without_an_end_cannot_be_guided() -> None:
    with pytest.raises(RequestError, match="no token that ends an answer"):
        Grammars(TOKENIZER, 320, ()).guide(Grammar("regex", "a"))
