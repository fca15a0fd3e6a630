"""Calls of ops: arguments brought to a device, the implementation run on them, its outputs brought back."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.rows import PagedRows
from sglk.operators.cases import OPS, OpCase

NARROW = (torch.bfloat16, torch.float16)


def reference_outputs(case: OpCase) -> list[torch.Tensor]:
    """Return what the op is to come to, computed on the CPU."""
    arguments = [widened(argument) if case.recipe.widen else argument for argument in case.arguments()]
    with torch.inference_mode():
        return outputs_of(OPS[case.op].reference(*arguments), arguments, case.recipe.in_place)


def implementation_outputs(
    case: OpCase, implementation: Implementation[Any, Any], backend: DeviceBackend
) -> list[torch.Tensor]:
    """Return what an implementation makes of the case, on the CPU; raises whatever it raises."""
    arguments = device_arguments(case, implementation, backend)
    result = backend.execute_runnable(lambda: implementation.function(*arguments))
    backend.synchronize()
    outputs = outputs_of(result, arguments, case.recipe.in_place)
    return [backend.execute_runnable(output.cpu) for output in outputs]


def device_arguments(case: OpCase, implementation: Implementation[Any, Any], backend: DeviceBackend) -> list[Any]:
    """Return the arguments on the device, weights as the implementation packs them; new ones at every call."""
    placed = [place(argument, backend) for argument in case.arguments()]
    if implementation.packing is None:
        return placed
    pack = implementation.packing.pack
    return [
        backend.execute_runnable(partial(pack, argument)) if isinstance(argument, QuantisedMatrix) else argument
        for argument in placed
    ]


def place(argument: Any, backend: DeviceBackend) -> Any:
    """Return a copy on the device; a view of a larger tensor becomes such a view again."""
    if isinstance(argument, PagedRows):
        rows = argument
        lens = rows.query_lens_B, rows.kv_lens_B
        return PagedRows(*lens, rows.page_table_BP, rows.page_size, backend.device, rows.window)
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


def widened(argument: Any) -> Any:
    """Return a 16-bit tensor in fp32, anything else as it is."""
    return argument.float() if isinstance(argument, torch.Tensor) and argument.dtype in NARROW else argument


def outputs_of(result: Any, arguments: Sequence[Any], in_place: Sequence[int]) -> list[torch.Tensor]:
    """Return the tensors that a call came to: what it returned, or the arguments that it wrote to."""
    if in_place:
        return list(tensors_in([arguments[position] for position in in_place]))
    return list(tensors_in(result))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in tuples, lists and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [tensor for part in fields(value) for tensor in tensors_in(getattr(value, part.name))]
    return []
