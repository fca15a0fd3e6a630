"""Whether the machine can make the arguments of an op at a model's own shapes."""

from sglk.backends.host_memory import host_memory
from sglk.operators.steps import ModelOp

HOST_COPIES = 4
"""Sizes of the arguments that are in the machine's memory at once: drawn in fp32, in their dtype, on the device."""


def lack_of_room(op: ModelOp) -> str | None:
    """Say what the arguments of a call would take of the machine's memory where that is more than is free."""
    needed, free = HOST_COPIES * op.argument_bytes, host_memory().free
    if needed <= free:
        return None
    return (
        f"its arguments take about {_gib(needed)} of this machine's memory while they are made, {_gib(free)} are free"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
