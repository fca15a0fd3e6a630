"""What went wrong on the device, in words for whoever asked."""

from sglk.errors import CapacityError, SglkError

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""Device libraries share no exception class for it, but each says it in one of these ways."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device, or the machine, had too little memory for a step."""
    if isinstance(error, CapacityError | MemoryError):
        return True
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)


def describe(error: BaseException) -> str:
    """Return one line on `error`, with what to do about it where that is known."""
    lines = str(error).splitlines()
    text = lines[0] if lines else ""
    if not isinstance(error, SglkError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if is_out_of_memory(error):
        text += "; lower runtime.mem_fraction_static or runtime.max_prefill_tokens"
    return text
