"""One call of an op: arguments brought to a device, the implementation run on them, its outputs brought back.

These functions know nothing of cases, so that a script that shows a failure again can carry them.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.rows import PagedRows

NARROW = (torch.bfloat16, torch.float16)


def reference_outputs(
    reference: Callable[..., Any], arguments: Sequence[Any], in_place: Sequence[int], widen: bool
) -> list[torch.Tensor]:
    """Return what an op is to come to, computed on the CPU; `arguments` stay as they are.

    `in_place` are the positions of those that it writes to; with `widen` it gets 16-bit tensors in fp32.
    """
    own = [widened(argument) if widen else argument for argument in arguments]
    own = [copy.deepcopy(each) if position in in_place else each for position, each in enumerate(own)]
    with torch.inference_mode():
        return outputs_of(reference(*own), own, in_place)


def implementation_outputs(
    implementation: Implementation[Any, Any], arguments: Sequence[Any], in_place: Sequence[int], backend: DeviceBackend
) -> list[Any]:
    """Return what an implementation makes of the same, where and as it left it; raises whatever it raises."""
    placed = device_arguments(implementation, arguments, backend)
    result = backend.execute_runnable(lambda: implementation.function(*placed))
    backend.synchronize()
    return outputs_of(result, placed, in_place)


def device_arguments(
    implementation: Implementation[Any, Any], arguments: Sequence[Any], backend: DeviceBackend
) -> list[Any]:
    """Return copies of the arguments on the device, weights as the implementation packs them."""
    placed = [place(argument, backend) for argument in arguments]
    if implementation.packing is None:
        return placed
    pack, positions = implementation.packing.pack, implementation.packing.positions
    return [
        backend.execute_runnable(partial(pack, argument))
        if (isinstance(argument, QuantisedMatrix) if positions is None else position in positions)
        else argument
        for position, argument in enumerate(placed)
    ]


def place(argument: Any, backend: DeviceBackend) -> Any:
    """Return a copy on the device; a view of a larger tensor becomes such a view again."""
    if isinstance(argument, PagedRows):
        lens_B = argument.query_lens_B, argument.kv_lens_B
        return PagedRows(*lens_B, argument.page_table_BP, argument.page_size, backend.device, argument.window)
    if is_dataclass(argument) and not isinstance(argument, type):
        parts = {part.name: place(getattr(argument, part.name), backend) for part in fields(argument)}
        return replace(argument, **parts)
    if not isinstance(argument, torch.Tensor):
        return argument
    if argument._base is not None:
        whole = place(argument._base, backend)
        return whole.as_strided(argument.size(), argument.stride(), argument.storage_offset())
    placed = backend.allocate(tuple(argument.shape), argument.dtype)
    backend.copy(argument, placed)
    return placed


def on_host(output: torch.Tensor, backend: DeviceBackend) -> torch.Tensor:
    """Return a copy of an output in the machine's own memory."""
    host = torch.empty(output.shape, dtype=output.dtype)
    backend.copy(output, host)
    backend.synchronize()
    return host


def widened(argument: Any) -> Any:
    """Return a 16-bit tensor in fp32, anything else as it is."""
    return argument.float() if isinstance(argument, torch.Tensor) and argument.dtype in NARROW else argument


def outputs_of(result: Any, arguments: Sequence[Any], in_place: Sequence[int]) -> list[Any]:
    """Return what a call came to, one by one: what it returned, or the tensors that it wrote to."""
    if in_place:
        return tensors_in([arguments[position] for position in in_place])
    return [*result] if isinstance(result, tuple) and len(result) > 1 else [result]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in tuples, lists and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [tensor for part in fields(value) for tensor in tensors_in(getattr(value, part.name))]
    return []


def form_problem(
    expected: Sequence[torch.Tensor], actual: Sequence[Any], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Say what is wrong with the number, kind, shapes, dtypes and place of outputs; `dtype` is that of wide ones."""
    if len(actual) != len(expected):
        return f"returns {len(actual)} outputs, expected {len(expected)}"
    for want, got in zip(expected, actual, strict=True):
        if not isinstance(got, torch.Tensor):
            return f"an output is of type {type(got).__name__}, expected a tensor"
        if want.shape != got.shape:
            return f"an output has shape {list(got.shape)}, expected {list(want.shape)}"
        wanted = dtype if want.dtype is torch.float32 else want.dtype
        if got.dtype != wanted:
            return f"an output has dtype {got.dtype}, expected {wanted}"
        if got.device.type != device.type:
            return f"an output is on {got.device.type}, expected {device.type}"
    return None
