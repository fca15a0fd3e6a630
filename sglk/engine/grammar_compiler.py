"""From the text of a grammar to what the llguidance library follows.

It reads JSON schemas, regular expressions (Rust's syntax, matched against the whole answer), and context-free grammars
in GBNF or in its own dialect of Lark, and works on bytes, so that no vocabulary is too odd for it.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from sglk.engine.guide import GrammarError, Guide, in_one_line
from sglk.engine.messages import Grammar
from sglk.errors import RequestError

LIBRARY = "llguidance"

_MARK = "\x02"
"""A byte that no text has, and no piece of a vocabulary joins with others."""


class Vocabulary(Protocol):
    """The part of a tokenizer that grammars need."""

    bos_token_id: int | None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; nothing for unknown ids."""

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is no text."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A vocabulary in numbers and bytes, which can be sent to another process."""

    tokens: list[bytes]
    special_token_ids: list[int]
    bos_token_id: int | None
    end_token_ids: list[int]
    """Tokens that end an answer; at least one."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, vocab_size: int, end_token_ids: Iterable[int]) -> "TokenTable":
        """Read a vocabulary of `vocab_size` tokens, padding included."""
        return cls(
            [vocabulary.token_bytes(token) for token in range(vocab_size)],
            [token for token in range(vocab_size) if vocabulary.is_special(token)],
            vocabulary.bos_token_id,
            sorted(end_token_ids),
        )


class _WrappedTable:
    """A vocabulary in the form that the library reads."""

    is_tokenizer_wrapper = True

    def __init__(self, table: TokenTable, encode: Callable[[str], list[int]]) -> None:
        self.tokens, self.special_token_ids = table.tokens, table.special_token_ids
        self.bos_token_id, self.eos_token_id = table.bos_token_id, table.end_token_ids[0]
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


class Compiler:
    """Compiles grammars for one vocabulary; may be used from any thread."""

    def __init__(self, table: TokenTable, encode: Callable[[str], list[int]] | None = None) -> None:
        """Take a moment: a tenth of a second for 50 000 tokens.

        `encode` gives the tokens that the model expects for a text; None = the longest that fit, from its beginning on.
        """
        self._vocab_size = len(table.tokens)
        self._library = import_module(LIBRARY)
        self._tokens, self._encode = table.tokens, encode or (lambda text: [])
        wrapped = _WrappedTable(table, self._tokens_of)
        self._tokenizer = self._library.LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=table.end_token_ids)

    def __call__(self, grammar: Grammar) -> Any:
        """Return a matcher at the start of `grammar`, to be copied; raises RequestError where that is impossible."""
        try:
            matcher = self._library.LLMatcher(self._tokenizer, self._definition(grammar), log_level=0)
            # The first mask takes the longest, and shows what is too complex to follow.
            Guide(matcher.deep_copy(), self._vocab_size).allowed()
        except (ValueError, GrammarError) as error:
            raise _refusal(grammar, in_one_line(str(error))) from None
        return matcher

    def _definition(self, grammar: Grammar) -> Any:
        """Return `grammar` in the library's own form, once it is known to be well formed."""
        if grammar.kind == "json_schema":
            _read_json(grammar)
        if grammar.kind != "choice":
            return self._library.grammar_from(grammar.kind, grammar.text)
        choices = _read_json(grammar)
        if not (isinstance(choices, list) and choices and all(isinstance(text, str) and text for text in choices)):
            raise _refusal(grammar, "it must be a list of at least one text, and of no empty one")
        # As one terminal, thousands of texts cost no more than a few; as rules they would be parsed side by side.
        return self._library.grammar_from("lark", f"start: CHOICE\nCHOICE: {' | '.join(map(json.dumps, choices))}")

    def _tokens_of(self, text: str) -> list[int]:
        """Return tokens that spell `text`, best the model's own; some vocabularies put a space before every text."""
        for lead in ("", _MARK):
            tokens = self._encode(lead + text)
            spelt = [self._tokens[token] for token in tokens]
            while lead and lead.encode() in b"".join(spelt):
                tokens, spelt = tokens[1:], spelt[1:]
            if b"".join(spelt) == text.encode():
                return tokens
        longest: list[int] = self._tokenizer.greedy_tokenize(text)
        return longest


def _read_json(grammar: Grammar) -> Any:
    """Return the value that the text stands for, of which the library would complain in words of its own."""
    try:
        return json.loads(grammar.text)
    except ValueError as error:
        raise _refusal(grammar, f"it is not JSON: {error}") from None
    except RecursionError:
        raise _refusal(grammar, "it is nested too deeply") from None


def _refusal(grammar: Grammar, reason: str) -> RequestError:
    name = grammar.kind.replace("_", " ")
    return RequestError(f"the {name} is invalid: {reason}", param=grammar.kind, code="invalid_grammar")
