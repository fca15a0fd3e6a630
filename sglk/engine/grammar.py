"""Guided decoding: grammars that answers have to follow, compiled once and kept for a while.

The llguidance library is asked for when the first request needs it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from importlib.util import find_spec
from threading import Lock
from typing import Any

from sglk.engine.grammar_compiler import LIBRARY, Compiler, TokenTable, Vocabulary
from sglk.engine.grammar_trial import GrammarTrial
from sglk.engine.guide import Guide
from sglk.engine.messages import Grammar
from sglk.errors import RequestError

INSTALL = "pip install 'sglk[guided]'"
MAX_CACHED = 128
"""Compiled grammars that are kept, the most recently used ones; each takes some tens of kilobytes."""


class Grammars:
    """Compiles grammars for one vocabulary and keeps the latest; may be used from any thread."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, end_token_ids: Iterable[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._end_token_ids = [token for token in end_token_ids if token < vocab_size]
        self._tools: tuple[GrammarTrial, Compiler] | None = None
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()
        self._lock = Lock()

    def guide(self, grammar: Grammar) -> Guide:
        """Return a guide at the start of `grammar`; raises RequestError for one that cannot be followed.

        The first call takes half a second, a new grammar about two milliseconds, and seconds for the most complex ones.
        """
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
            self._tools = self._tools or self._make_tools(grammar)
            trial, compiler = self._tools
        # Outside the lock: one that is hard to compile must not hold up those that are known.
        if matcher is None:
            trial.run(grammar)
            matcher = compiler(grammar)
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return Guide(matcher.deep_copy(), self._vocab_size)

    def _make_tools(self, grammar: Grammar) -> tuple[GrammarTrial, Compiler]:
        if not guided_decoding_available():
            message = f"guided decoding needs {LIBRARY} on the server; install it with: {INSTALL}"
            raise RequestError(message, param=grammar.kind, code="unsupported_parameter")
        if not self._end_token_ids:
            message = "the model has no token that ends an answer, so none can be guided; leave the grammar out"
            raise RequestError(message, param=grammar.kind, code="unsupported_parameter")
        table = TokenTable.of(self._vocabulary, self._vocab_size, self._end_token_ids)
        return GrammarTrial(table), Compiler(table, self._encode)

    def _encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text, add_special_tokens=False)


def guided_decoding_available() -> bool:
    """Return whether the library is installed, without importing it."""
    return find_spec(LIBRARY) is not None
