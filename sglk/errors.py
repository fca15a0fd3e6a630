"""What can go wrong, in the user's words: every message is one line and names a way out."""

import difflib
from collections.abc import Iterable

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
"""Libraries share no exception class for it, but each says it in one of these ways."""


class SglkError(Exception):
    """A failure that the user can act on; the command line prints its message alone and exits with `exit_code`."""

    exit_code = 2


class ConfigError(SglkError):
    """The composed configuration is wrong: an unknown name, a value out of range, a missing key."""


class ModelLoadError(SglkError):
    """Weights, tokenizer or model configuration are absent, damaged or contradictory."""


class BackendError(SglkError):
    """A chip plugin is unknown, failed to load or refuses the machine."""


class CapacityError(SglkError):
    """The deployment does not fit into the device's memory."""


class RunError(SglkError):
    """A benchmark, study or report could not produce a result."""

    exit_code = 1


class RequestError(SglkError):
    """One request is invalid (HTTP 4xx); the server goes on.

    `param` is the name of the offending request field, `code` a short machine-readable reason.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device, or the machine, had too little memory for something."""
    if isinstance(error, CapacityError | MemoryError):
        return True
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)


def nearest(word: str, options: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the option closest to `word`, or an empty string when none is close."""
    close = difflib.get_close_matches(word, list(options), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
