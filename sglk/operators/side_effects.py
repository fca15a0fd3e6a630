"""What an implementation does beside returning its result: to its arguments, and to results that it returned before."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.operators.calling import device_arguments, on_host, tensors_in


def side_effect(
    implementation: Implementation[Any, Any], arguments: Sequence[Any], written: Sequence[int], backend: DeviceBackend
) -> str | None:
    """Return which argument a call overwrites, or that it takes the memory of an earlier result; None = neither.

    `written` are the positions of arguments that the op may write to.
    """
    placed = device_arguments(implementation, arguments, backend)
    kept = [position for position in range(len(placed)) if position not in written]
    before = [_values(placed[position], backend) for position in kept]
    first = _call(implementation, placed, backend)
    for position, values in zip(kept, before, strict=True):
        after = _values(placed[position], backend)
        if not all(map(_same, values, after)):
            return f"overwrites argument {position}, which its caller goes on to use"
    # All results stay alive: a third call shows memory that two take in turns.
    results = [first, *(_call(implementation, placed, backend) for _ in range(2))]
    own = [_memory(result) - _memory(tensors_in(placed)) for result in results]
    if any(one & another for one, another in combinations(own, 2)):
        return "returns the same memory at each call, so that a result which is still in use is overwritten"
    return None


def _call(
    implementation: Implementation[Any, Any], placed: Sequence[Any], backend: DeviceBackend
) -> list[torch.Tensor]:
    result = backend.execute_runnable(lambda: implementation.function(*placed))
    backend.synchronize()
    return tensors_in(result)


def _memory(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def _values(argument: Any, backend: DeviceBackend) -> list[torch.Tensor]:
    return [on_host(tensor, backend) for tensor in tensors_in(argument)]


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether the bits are equal, those of NaN too."""
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (before, after)))
