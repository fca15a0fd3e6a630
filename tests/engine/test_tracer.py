"""Of an op whose result is not finite it is told whether the implementation, the model or the input is to blame."""

from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends import reference, sampling_ops
from sglk.backends.kv_values import KVScales
from sglk.backends.ops import Op, OpRegistry
from sglk.backends.quantise import quantise_int8
from sglk.backends.quantised_linear import linear_w8a8
from sglk.backends.rows import PagedRows
from sglk.engine.fault import Fault
from sglk.engine.tracer import Tracer

NAN, INF = float("nan"), float("inf")


def traced(op: Op[..., Any], *arguments: Any, spoils: int | None = None) -> dict[int, Fault]:
    """Trace one call for three rows of a line each, by an implementation that spoils a line of its result."""

    def implementation(*given: Any) -> Any:
        result = op.reference(*given)
        if spoils is not None:
            result[spoils] = NAN
        return result

    ops = OpRegistry()
    ops.register(op, "chip", implementation)
    bound, tracer = ops.select(op, size=4), Tracer(3)
    tracer.rows_N = np.arange(3)
    with ops.observed(tracer):
        bound(*arguments)
    return tracer.faults


def cause(faults: dict[int, Fault], row: int) -> str:
    """Return the cause of the only fault, which is of `row` and names who ran the op for which shape."""
    (fault,) = faults.values()
    assert faults == {row: fault}
    assert (fault.provider, fault.shape, fault.place) == ("chip", "size=4", 0)
    return fault.cause


def with_line(line: int, value: float) -> torch.Tensor:
    x_TE = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    x_TE[line] = value
    return x_TE


def test_an_op_that_makes_nan_of_numbers_is_to_blame_for_the_rows_it_spoils() -> None:
    assert cause(traced(reference.silu_and_mul, with_line(0, 1.0), spoils=1), 1) == "op"


def test_sound_ops_leave_no_fault() -> None:
    assert not traced(reference.silu_and_mul, with_line(0, 1.0))


def test_what_came_in_is_to_blame_where_it_was_not_finite() -> None:
    assert cause(traced(reference.silu_and_mul, with_line(2, NAN)), 2) == "input"


def test_an_op_that_overwrites_its_arguments_is_judged_by_what_it_was_given() -> None:
    def in_place(x_TE: torch.Tensor, residual_TE: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        residual_TE.fill_(NAN)
        return residual_TE, residual_TE

    ops = OpRegistry()
    ops.register(reference.add_rms_norm, "chip", in_place)
    bound, tracer = ops.select(reference.add_rms_norm, size=8), Tracer(3)
    tracer.rows_N = np.array([7, 7, 7])
    with ops.observed(tracer):
        bound(with_line(0, 1.0), with_line(1, 2.0), torch.ones(8), 1e-5)
    assert tracer.faults[7].cause == "op"


def test_numbers_that_outgrow_their_dtype_are_the_model_s_own() -> None:
    x_TE = with_line(1, 6e4).half()
    assert cause(traced(reference.linear, x_TE, torch.full((2, 8), 2.0).half(), None), 1) == "overflow"


def test_weights_that_are_not_finite_are_to_blame() -> None:
    weight_VE = torch.ones(5, 4)
    weight_VE[3] = INF
    assert cause(traced(reference.embedding, torch.tensor([0, 3, 4]), weight_VE), 1) == "weights"
    matrix = quantise_int8(torch.ones(4, 8), 8)
    matrix.scales_OG[2] = NAN
    faults = traced(linear_w8a8, with_line(0, 1.0), matrix, None)
    assert {row: fault.cause for row, fault in faults.items()} == dict.fromkeys(range(3), "weights")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_kv_of_earlier_steps_is_to_blame_for_the_row_that_reads_it_alone(dtype: torch.dtype) -> None:
    pool_SKD, scales = torch.zeros(8, 1, 4, dtype=dtype), None
    if dtype is torch.int8:
        scales = KVScales(torch.ones(8, 1), torch.ones(8, 1))
        scales.values_SK[5] = NAN
    else:
        # Slots that no row names may hold anything.
        pool_SKD[5:] = NAN
    rows = PagedRows(np.ones(3, np.int64), np.array([2, 2, 2]), np.array([[0], [1], [2]]), 2, torch.device("cpu"))
    q_BHD = torch.ones(3, 1, 4)
    faults = traced(reference.attention_decode, q_BHD, pool_SKD, pool_SKD, rows, 1.0, scales)
    assert {row: fault.cause for row, fault in faults.items()} == {2: "kv"}


def test_keys_that_are_stored_wrongly_are_found_where_they_are_stored() -> None:
    def forgetful(k_TKD: Any, v_TKD: Any, k_pool_SKD: torch.Tensor, v_pool_SKD: Any, slots_T: Any) -> None:
        reference.store_kv.reference(k_TKD, v_TKD, k_pool_SKD, v_pool_SKD, slots_T)
        k_pool_SKD[slots_T[1]] = INF

    ops = OpRegistry()
    ops.register(reference.store_kv, "chip", forgetful)
    bound, tracer = ops.select(reference.store_kv, size=4), Tracer(3)
    tracer.rows_N = np.arange(3)
    keys, pool = torch.ones(3, 1, 4), torch.full((8, 1, 4), NAN)
    with ops.observed(tracer):
        bound(keys, keys, pool, pool.clone(), torch.tensor([4, 2, 0]))
    assert {row: fault.cause for row, fault in tracer.faults.items()} == {1: "op"}


def test_forbidden_tokens_are_no_fault_and_a_row_without_any_number_is() -> None:
    logits_BV = torch.zeros(3, 64)
    words_MW = torch.tensor([[1, 0], [0, 0]], dtype=torch.int32)
    faults = traced(sampling_ops.mask_logits, logits_BV, torch.tensor([0, 2]), words_MW)
    assert {row: fault.cause for row, fault in faults.items()} == {2: "overflow"}


def test_handles_are_as_before_when_nobody_watches_any_more() -> None:
    ops = OpRegistry()
    bound, tracer = ops.select(reference.silu_and_mul, size=4), Tracer(3)
    tracer.rows_N = np.arange(3)
    with pytest.raises(RuntimeError), ops.observed(tracer):
        bound(torch.ones(3, 5))
    bound(with_line(1, NAN))
    assert not tracer.faults


def test_a_line_that_cannot_be_told_apart_is_every_row_s() -> None:
    ops = OpRegistry()
    bound, tracer = ops.select(sampling_ops.token_logprobs, size=4), Tracer(2)
    tracer.rows_N = np.arange(3)
    with ops.observed(tracer):
        bound(with_line(1, NAN)[:2], torch.tensor([0, 1]), 1)
    assert {row: fault.cause for row, fault in tracer.faults.items()} == dict.fromkeys(range(2), "input")
