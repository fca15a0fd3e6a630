"""What of the vendor's library is missing, or called otherwise than sglk knows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends import moe_ops, reference
from sglk.backends.ops import REFERENCE
from sglk.errors import BackendError
from tests.backends.kunlun_on_cpu import ATTENTION, BF16, MOE, Change, KunlunOnCpu
from tests.backends.tensors import close, randn

CHANGES = [
    (
        "def swiglu(x, y, limit=None):",
        "def swish_glu(x, y):",
        "kunlun_ops.swiglu is not in the installed library",
    ),
    (
        "def swiglu(x, y, limit=None):",
        "def swiglu(x, out, limit=None):",
        "kunlun_ops.swiglu has no parameter y; it takes x, out, limit",
    ),
    (
        "def swiglu(x, y, limit=None):",
        "def swiglu(x, y, table, limit=None):",
        "kunlun_ops.swiglu wants table, of which sglk does not know what it means",
    ),
    (
        '"""Stands in for the vendor\'s op library',
        'raise OSError("undefined symbol: xpu_launch")\n"""Stands',
        "kunlun_ops does not load (undefined symbol: xpu_launch)",
    ),
]


@pytest.mark.parametrize(("old", "new", "reason"), CHANGES)
def test_a_function_that_is_missing_or_called_otherwise_loses_the_op_with_the_reason(
    change: Change, old: str, new: str, reason: str
) -> None:
    change(old, new)
    bound = KunlunOnCpu().ops.select(reference.silu_and_mul, dtype="bf16", size=32)
    assert (bound.choice.provider, bound.choice.reason) == (REFERENCE, f"kunlun_ops: {reason}")
    x = randn(3, 64, dtype=BF16)
    assert torch.equal(bound(x), reference.silu_and_mul.reference(x))
    (finding,) = (each for each in KunlunOnCpu.diagnose() if each.check == "op silu_and_mul")
    assert (finding.status, finding.why) == ("warn", reason)


def test_without_torch_as_a_fallback_a_missing_function_is_an_error(change: Change) -> None:
    change("def swiglu(x, y, limit=None):", "def swish_glu(x, y):")
    ops = KunlunOnCpu(use_torch_fallback=False, fallback="allow").ops
    with pytest.raises(BackendError, match=r"op 'silu_and_mul' for .*kunlun_ops\.swiglu is not in the installed"):
        ops.select(reference.silu_and_mul, dtype="bf16", size=32)


def test_positional_functions_are_counted(change: Change) -> None:
    change(
        "def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, ", "def reshape_and_cache(key, value, "
    )
    change("k_max=None, v_max=None, quant_mode=0", "cache")
    choice = KunlunOnCpu().ops.select(reference.store_kv, **ATTENTION).choice
    assert choice.reason == "kunlun_ops: kunlun_ops.reshape_and_cache takes 3 arguments, 5 were to be given"


def test_the_other_spelling_of_a_version_is_known(change: Change) -> None:
    change("def rmsnorm(x, weight, output, eps, ", "def rmsnorm(x, weight, out, epsilon, ")
    change("assert x.is_contiguous()", "output, eps = out, epsilon")
    change(
        "moe_sigmoid_group_topk_norm(x, topk_index, norm_score, block_static,",
        "moe_sigmoid_group_topk_norm(x, topk_index, norm_score, block_statistic,",
    )
    change("assert block_static.shape == (12, x.shape[1])", "assert block_statistic.shape == (12, x.shape[1] + 1)")
    ops = KunlunOnCpu(fallback="forbid").ops
    x, weight = randn(5, 64, dtype=BF16), randn(64, dtype=BF16, seed=2)
    close(ops.select(reference.rms_norm, dtype="bf16")(x, weight, 1e-5), reference.rms_norm.reference(x, weight, 1e-5))
    arguments: tuple[Any, ...] = (randn(9, 8), None, 2, 4, 2, "sigmoid", True)
    grouped = ops.select(moe_ops.route_grouped, **MOE, renormalise=True, scoring="sigmoid")
    assert torch.equal(grouped(*arguments)[1], moe_ops.route_grouped.reference(*arguments)[1])


def test_a_function_that_hides_its_signature_is_trusted(change: Change, sdk: Path) -> None:
    with (sdk / "kunlun_ops.py").open("a") as file:
        file.write("\n\n_swiglu = swiglu\n\n\ndef swiglu(*args, **keywords):\n    return _swiglu(*args, **keywords)\n")
    bound = KunlunOnCpu(fallback="forbid").ops.select(reference.silu_and_mul, dtype="bf16", size=32)
    x = randn(3, 64, dtype=BF16)
    close(bound(x), reference.silu_and_mul.reference(x))


@pytest.mark.usefixtures("sdk")
def test_the_doctor_gets_one_finding_for_each_op() -> None:
    findings = list(KunlunOnCpu.diagnose())
    checks = [finding.check for finding in findings]
    assert len(checks) == len(set(checks))
    assert "op route_grouped" in checks
    assert {finding.status for finding in findings} == {"ok"}
