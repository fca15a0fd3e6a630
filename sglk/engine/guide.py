"""Where one answer stands in its grammar, and which tokens may come next."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BITS = 32
"""Token ids per word of a mask."""

Mask = npt.NDArray[np.int32]
"""One bit per token id, the lowest bit of the first word for id 0; set where the token may come next."""


class GrammarError(Exception):
    """The answer left the grammar, or the grammar became too much to follow; says how."""


class Guide:
    """Follows one answer through its grammar, by a matcher of the llguidance library."""

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
            raise GrammarError(in_one_line(self._matcher.get_error()))


def in_one_line(text: str) -> str:
    """Return a message of the library in one line, without drawings of the place and dumps of its state."""
    if "NoExtensionBias" in text:
        # What the library says when it finds out while it follows the grammar, not while it reads it.
        return "no text fits it"
    lines = [line.strip() for line in text.partition("\n<state>")[0].splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors or lines)[:300]
