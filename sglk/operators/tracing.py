"""A device that computes nothing and writes down which ops it was asked for: memory without bytes, on torch's meta.

Letters as in `reference.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from sglk.backends.base import Capabilities, DeviceBackend, DeviceInfo, MemoryInfo
from sglk.backends.constraints import Trait
from sglk.backends.op_results import RESULTS
from sglk.backends.ops import BoundOp, Op, OpRegistry, P, R
from sglk.backends.work import Work, work_of
from sglk.operators.cases import OpCase
from sglk.operators.shapes import shape_of

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A call that was written down."""

    case: OpCase
    arguments: tuple[Any, ...]
    """Without content."""
    work: Work


class TracingOps(OpRegistry):
    """Hands out ops that write down what they are called with."""

    def __init__(self, seed: int) -> None:
        super().__init__("allow")
        self._seed = seed
        self.calls: list[Call] = []

    def select(self, op: Op[P, R], **traits: Trait) -> BoundOp[P, R]:
        """Return the handle that writes down calls of `op` of this shape class."""
        bound = super().select(op, **traits)
        bound.observe(self._record)
        return bound

    def _record(self, bound: BoundOp[..., Any], *arguments: Any) -> Any:
        name = bound.op.name
        shape = shape_of(name, dict(bound.choice.traits), arguments)
        self.calls.append(Call(OpCase(name, shape, self._seed), arguments, work_of(name, *arguments)))
        return _result(bound.op, arguments)


def _result(op: Op[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return what a call comes to, without values."""
    first = arguments[0]
    # The engine reads these two, and what is on meta cannot be read.
    if op.name == "greedy":
        return torch.zeros(len(first)), torch.zeros(len(first), dtype=torch.int64)
    if op.name == "sample":
        return torch.zeros(len(first), dtype=torch.int64)
    return RESULTS[op](*arguments)


class TracingBackend(DeviceBackend):
    """Stands for a device of the given capabilities, of any size."""

    name = "tracing"
    simulated = True
    device = torch.device("meta")

    def __init__(self, capabilities: Capabilities, seed: int = 0) -> None:
        """`seed` is that of the cases."""
        self.capabilities = replace(capabilities, graph_capture=False)
        self.trace = TracingOps(seed)
        self.ops = self.trace

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor without memory."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def free(self, tensor: torch.Tensor) -> None:
        """Do nothing."""

    def memory_info(self) -> MemoryInfo:
        """Return more than any model needs."""
        return MemoryInfo(2**60, 2**60)

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Do nothing."""

    def execute_runnable(self, runnable: Callable[[], T]) -> T:
        """Run on the calling thread, without autograd."""
        with torch.inference_mode():
            return runnable()

    def synchronize(self) -> None:
        """Return at once."""

    def device_info(self) -> DeviceInfo:
        """Return the name."""
        return DeviceInfo("meta")
