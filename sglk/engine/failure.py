"""What went wrong on the device, in words for whoever asked."""

from sglk.backends.failing_op import failing_op
from sglk.backends.ops import REFERENCE
from sglk.errors import SglkError, is_out_of_memory
from sglk.plugins.causes import advice

# The form of what an op of a plugin returns is looked at once for a shape class, not at every call.
_GIVEN = "what it was given may be the fault of an op before it: `sglk ops test` tries each"


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
    # A library that is loaded when its op is first called fails here, and not when the plugin is imported.
    hint = advice(text)
    if (choice := failing_op(error)) is not None:
        text = f"op {choice.op!r} of {choice.provider!r} failed: {text}"
        if choice.provider == REFERENCE and not is_out_of_memory(error):
            hint = hint or _GIVEN
    return text if hint is None else f"{text}; {hint}"
