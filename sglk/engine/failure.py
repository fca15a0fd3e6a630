"""What went wrong on the device, in words for whoever asked."""

from sglk.backends.failing_op import failing_op
from sglk.errors import SglkError, is_out_of_memory
from sglk.plugins.causes import advice


def describe(error: BaseException) -> str:
    """Return one line on `error`, with the op that it came out of and what to do about it where they are known."""
    text = in_words(error)
    if is_out_of_memory(error):
        return f"{text}; lower runtime.mem_fraction_static or runtime.max_prefill_tokens"
    return text


def in_words(error: BaseException) -> str:
    """Return the first line of `error`, its kind where its message is not for users, and the op it came out of."""
    lines = str(error).splitlines()
    text = lines[0] if lines else ""
    if not isinstance(error, SglkError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if (choice := failing_op(error)) is not None:
        text = f"op {choice.op!r} of {choice.provider!r} failed: {text}"
    # A library that is loaded when its op is first called fails here, and not when the plugin is imported.
    return f"{text}; {hint}" if (hint := advice(text)) is not None else text
