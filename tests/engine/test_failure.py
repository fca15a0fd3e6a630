"""What users read of a step that failed."""

import pytest
import torch

from sglk.backends import reference
from sglk.backends.ops import OpRegistry
from sglk.engine.failure import describe

BLAME = "what it was given may be the fault of an op before it: `sglk ops test` tries each"


def words_of(ops: OpRegistry, width: int) -> str:
    with pytest.raises(RuntimeError) as raised:
        ops.select(reference.linear, in_features=4, out_features=2)(torch.ones(1, width), torch.ones(2, 4), None)
    return describe(raised.value)


def test_what_the_reference_cannot_take_is_not_its_own_fault() -> None:
    told = words_of(OpRegistry("allow"), 3)
    assert told.startswith("op 'linear' of 'reference' failed: RuntimeError: ")
    assert told.endswith(f"; {BLAME}")


def test_a_kernel_that_fails_is_told_as_it_is() -> None:
    def broken(x_TE: torch.Tensor, weight_OE: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError("launch failed")

    ops = OpRegistry()
    ops.register(reference.linear, "chip", broken)
    assert words_of(ops, 4) == "op 'linear' of 'chip' failed: RuntimeError: launch failed"
