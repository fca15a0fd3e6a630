"""Guided decoding: which tokens may come next so that the answer follows a grammar.

The grammars are those of the llguidance library, which is asked for when the first request needs it. It reads JSON
schemas, regular expressions (Rust's syntax, matched against the whole answer), and context-free grammars in GBNF or in
its own dialect of Lark, and works on bytes, so that no vocabulary is too odd for it.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sglk.engine.messages import Grammar
from sglk.errors import RequestError

LIBRARY = "llguidance"
INSTALL = "pip install 'sglk[guided]'"
MAX_CACHED = 128
"""Compiled grammars that are kept, the most recently used ones; each takes some tens of kilobytes."""

BITS = 32
"""Token ids per word of a mask."""

Mask = npt.NDArray[np.int32]
"""One bit per token id, the lowest bit of the first word for id 0; set where the token may come next."""


class Vocabulary(Protocol):
    """The part of a tokenizer that grammars need."""

    bos_token_id: int | None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; nothing for unknown ids."""

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is no text."""


class GrammarError(Exception):
    """The answer left the grammar, or the grammar became too much to follow; says how."""


class Guide:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._taken = 0
        self._mask = np.zeros(-(-vocab_size // BITS), np.int32)

    def follow(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Take what is new of the answer, which is `tokens` after the first `prompt_length`; raises GrammarError."""
        for place in range(prompt_length + self._taken, len(tokens)):
            self._matcher.consume_token(tokens[place])
        self._taken = len(tokens) - prompt_length
        self._check()

    def allowed(self) -> Mask:
        """Return the tokens that may come next; the array is overwritten by the next call. Raises GrammarError."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        if not self._mask.any():
            raise GrammarError("no token of the vocabulary fits")
        return self._mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher.get_error()))


class Grammars:
    """Compiles grammars for one vocabulary and keeps the latest; may be used from any thread."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, end_token_ids: Iterable[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(token for token in end_token_ids if token < vocab_size)
        self._tokenizer: Any = None
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()
        self._lock = Lock()

    def guide(self, grammar: Grammar) -> Guide:
        """Return a guide at the start of `grammar`; raises RequestError for one that cannot be followed.

        The first call takes a moment (a tenth of a second for 50 000 tokens), a new grammar about a millisecond, and
        hundreds for the most complex ones.
        """
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
            tokenizer = self._tokenizer = self._tokenizer or self._read_vocabulary(grammar)
        # Outside the lock: one that is hard to compile must not hold up others.
        matcher = matcher or self._compile(grammar, tokenizer)
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return Guide(matcher.deep_copy(), self._vocab_size)

    def _read_vocabulary(self, grammar: Grammar) -> Any:
        if not guided_decoding_available():
            message = f"guided decoding needs {LIBRARY} on the server; install it with: {INSTALL}"
            raise RequestError(message, param=grammar.kind, code="unsupported_parameter")
        if not self._end_token_ids:
            message = "the model has no token that ends an answer, so none can be guided; leave the grammar out"
            raise RequestError(message, param=grammar.kind, code="unsupported_parameter")
        wrapped = _WrappedVocabulary(self._vocabulary, self._vocab_size, self._end_token_ids[0])
        return import_module(LIBRARY).LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=self._end_token_ids)

    def _compile(self, grammar: Grammar, tokenizer: Any) -> Any:
        _check_text(grammar)
        library = import_module(LIBRARY)
        try:
            matcher = library.LLMatcher(tokenizer, _definition(library, grammar), log_level=0)
            # The first mask takes the longest, and shows what is too complex to follow.
            Guide(matcher.deep_copy(), self._vocab_size).allowed()
        except (ValueError, GrammarError) as error:
            raise _refusal(grammar, _reason(str(error))) from None
        return matcher


def guided_decoding_available() -> bool:
    """Return whether the library is installed, without importing it."""
    return find_spec(LIBRARY) is not None


class _WrappedVocabulary:
    """A vocabulary in the form that the library reads."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_id: int) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = eos_token_id
        self.bos_token_id = vocabulary.bos_token_id
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids = [token for token in range(vocab_size) if vocabulary.is_special(token)]

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode() if isinstance(text, bytes) else text
        return self._vocabulary.encode(text, add_special_tokens=False)


def _definition(library: Any, grammar: Grammar) -> Any:
    """Return `grammar` in the library's own form."""
    if grammar.kind != "choice":
        return library.grammar_from(grammar.kind, grammar.text)
    # As one terminal, thousands of texts cost no more than a few; as rules they would be parsed side by side.
    texts = " | ".join(json.dumps(text) for text in json.loads(grammar.text))
    return library.grammar_from("lark", f"start: CHOICE\nCHOICE: {texts}")


def _check_text(grammar: Grammar) -> None:
    """Refuse what the library would complain about in words of its own, or not at all."""
    if grammar.kind in ("json_schema", "choice"):
        try:
            value = json.loads(grammar.text)
        except ValueError as error:
            raise _refusal(grammar, f"it is not JSON: {error}") from None
        if grammar.kind == "choice" and not (value and all(value)):
            raise _refusal(grammar, "it must have at least one text, and no empty one")


def _refusal(grammar: Grammar, reason: str) -> RequestError:
    name = grammar.kind.replace("_", " ")
    return RequestError(f"the {name} is invalid: {reason}", param=grammar.kind, code="invalid_grammar")


def _reason(text: str) -> str:
    """Return a message of the library in one line, without drawings of the place and dumps of its state."""
    lines = [line.strip() for line in text.partition("\n<state>")[0].splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors or lines)[:300]
