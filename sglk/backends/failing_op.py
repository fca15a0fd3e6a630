"""Which op an error came out of, told after the fact: calls pay nothing for it."""

import traceback

from sglk.backends.ops import BoundOp, Choice


def failing_op(error: BaseException) -> Choice | None:
    """Return the op that was running, and whose, when `error` was raised; None when none was."""
    calls = [
        frame.f_locals["self"]
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code is BoundOp.__call__.__code__
    ]
    if not calls:
        return None
    bound: BoundOp[..., object] = calls[-1]
    return bound.choice
