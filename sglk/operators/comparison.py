"""One implementation against the reference, in one case."""

from typing import Any

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import TORCH_DTYPES, dtype_name
from sglk.backends.ops import Implementation
from sglk.operators.calling import implementation_outputs, reference_outputs
from sglk.operators.cases import OpCase


def mismatch(case: OpCase, implementation: Implementation[Any, Any], backend: DeviceBackend) -> str | None:
    """Return what is wrong with what the implementation comes to, or None.

    A simulated backend is held to the number, shapes and dtypes of outputs, not to their values.
    """
    expected = reference_outputs(case)
    try:
        actual = implementation_outputs(case, implementation, backend)
    except Exception as error:  # noqa: BLE001 - a vendor's op may raise anything, and that is a finding
        return f"raises {type(error).__name__}: {' '.join(str(error).split())}"
    if (problem := form_problem(case, expected, actual)) is not None or backend.simulated:
        return problem
    return case.recipe.judge(case.shape, case.arguments(), expected, actual)


def form_problem(case: OpCase, expected: list[torch.Tensor], actual: list[torch.Tensor]) -> str | None:
    """Say what is wrong with the number, shapes and dtypes of the outputs."""
    if len(actual) != len(expected):
        return f"returns {len(actual)} tensors, expected {len(expected)}"
    for want, got in zip(expected, actual, strict=True):
        if want.shape != got.shape:
            return f"an output has shape {list(got.shape)}, expected {list(want.shape)}"
        dtype = output_dtype(case, want)
        if got.dtype != dtype:
            return f"an output has dtype {dtype_name(got.dtype)}, expected {dtype_name(dtype)}"
    return None


def output_dtype(case: OpCase, expected: torch.Tensor) -> torch.dtype:
    """Return what an output's dtype is to be, of which the reference in fp32 has another."""
    widened = case.recipe.widen and not case.recipe.fp32_outputs and expected.dtype is torch.float32
    return TORCH_DTYPES[case.shape["dtype"]] if widened else expected.dtype
