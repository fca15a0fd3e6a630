"""Cases of ops: every op has some, they come out of a seed, and the cpu's implementations pass them."""

import pytest

from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import known_ops
from sglk.operators.calling import tensors_in
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.comparison import mismatch
from sglk.operators.judging import unequal
from sglk.operators.recipes import RECIPES


def cases() -> list[OpCase]:
    return list(matrix(CpuBackend.capabilities))


def test_every_op_of_the_seam_has_a_recipe_and_cases() -> None:
    assert sorted(RECIPES) == known_ops() == sorted(OPS)
    assert {case.op for case in cases()} == set(known_ops())


def test_a_case_has_the_same_arguments_at_every_call_and_others_from_another_seed() -> None:
    for case in cases():
        first, second = (tensors_in(list(case.arguments())) for _ in range(2))
        other = tensors_in(list(OpCase(case.op, case.shape, seed=1).arguments()))
        assert all(unequal(a, b) is None for a, b in zip(first, second, strict=True))
        assert any(unequal(a, b) is not None for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("op", known_ops())
def test_implementations_of_the_cpu_agree_with_the_reference(op: str) -> None:
    backend = CpuBackend(fallback="forbid")
    tried = 0
    for case in (case for case in cases() if case.op == op):
        for implementation in backend.ops.implementations(OPS[op]):
            if implementation.unmet(case.traits) is None:
                assert mismatch(case, implementation, backend) is None, f"{implementation.provider}, {case}"
                tried += 1
    assert tried
