"""One implementation against the reference, in one case."""

from typing import Any

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import TORCH_DTYPES
from sglk.backends.ops import Implementation
from sglk.operators.calling import form_problem, implementation_outputs, on_host, reference_outputs
from sglk.operators.cases import OPS, OpCase
from sglk.operators.side_effects import side_effect


def mismatch(case: OpCase, implementation: Implementation[Any, Any], backend: DeviceBackend) -> str | None:
    """Return what is wrong with what the implementation comes to, or None.

    A simulated backend is held to the number and form of outputs, not to their values.
    """
    recipe, arguments = case.recipe, case.arguments()
    expected = reference_outputs(OPS[case.op].reference, arguments, recipe.in_place, recipe.widen)
    try:
        outputs = implementation_outputs(implementation, arguments, recipe.in_place, backend)
        problem = form_problem(expected, outputs, wide_dtype(case), backend.device)
        if problem is not None or backend.simulated:
            return problem
        actual = [on_host(output, backend) for output in outputs]
    except KeyboardInterrupt:
        raise
    # A vendor's op may raise anything, also what is no Exception, and that is a finding.
    except BaseException as error:  # noqa: BLE001
        return raised(error)
    problem = recipe.judge(case.shape, arguments, expected, actual)
    if problem is not None:
        return problem
    try:
        return side_effect(implementation, arguments, (*recipe.in_place, *recipe.overwrites), backend)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return f"{raised(error)} (not at its first call)"


def raised(error: BaseException) -> str:
    """Return in one line what an implementation raises."""
    return f"raises {type(error).__name__}: {' '.join(str(error).split())}"


def wide_dtype(case: OpCase) -> torch.dtype:
    """Return the dtype of outputs that are fp32 in the reference."""
    recipe = case.recipe
    return TORCH_DTYPES[case.shape["dtype"]] if recipe.widen and not recipe.fp32_outputs else torch.float32
