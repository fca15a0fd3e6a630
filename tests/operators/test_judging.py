"""Judges: they see what is wrong, and let pass what the contract leaves open."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sglk.backends import reference
from sglk.backends.base import Capabilities
from sglk.backends.cpu import CpuBackend
from sglk.backends.kv_values import KVScales
from sglk.backends.ops import Implementation
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.comparison import mismatch


def first_case(op: str, **wanted: Any) -> OpCase:
    cases = (case for case in matrix(CpuBackend.capabilities) if case.op == op)
    return next(case for case in cases if all(case.shape[name] == value for name, value in wanted.items()))


def problem(case: OpCase, function: Callable[..., Any]) -> str | None:
    return mismatch(case, Implementation(case.op, "mine", function), CpuBackend())


def after(op: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the reference with its result changed."""
    return lambda *arguments: change(OPS[op].reference(*arguments))


def test_a_whole_page_may_not_be_read_where_a_row_ends_in_it() -> None:
    def reads_on(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Any, scale: float, scales: Any) -> Any:
        """Sum the values of whole pages into a term that is multiplied by 0."""
        out = reference.attention_decode.reference(q, k, v, rows, scale, scales)
        pages = torch.from_numpy(rows.page_table_BP).flatten()
        slots = pages[:, None] * rows.page_size + torch.arange(rows.page_size)
        return out + 0 * v[slots.flatten()].float().sum()

    assert "are not finite" in str(problem(first_case("attention_decode", page_size=16, kv_dtype="fp32"), reads_on))


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "bf16"])
def test_a_store_that_touches_other_slots_is_found(kv_dtype: str) -> None:
    case = first_case("store_kv", kv_dtype=kv_dtype)
    spared = next(slot for slot in range(21) if slot not in set(case.arguments()[4].tolist()))

    def smears(k: torch.Tensor, v: torch.Tensor, k_pool: torch.Tensor, *others: Any) -> None:
        reference.store_kv.reference(k, v, k_pool, *others)
        k_pool.view(torch.uint8)[spared] = 1

    assert problem(case, reference.store_kv.reference) is None
    assert problem(case, smears) is not None


def test_int8_values_may_be_a_step_away_and_not_two() -> None:
    case = first_case("store_kv", kv_dtype="int8")

    def shifted(steps: int) -> Callable[..., None]:
        def store(k: Any, v: Any, k_pool: torch.Tensor, v_pool: Any, slots: torch.Tensor, scales: KVScales) -> None:
            reference.store_kv.reference(k, v, k_pool, v_pool, slots, scales)
            k_pool[slots] = (k_pool[slots].int() - steps * k_pool[slots].int().sign()).to(torch.int8)

        return store

    assert problem(case, shifted(1)) is None
    assert "more than a step" in str(problem(case, shifted(2)))


def test_experts_may_come_in_any_order_and_not_others() -> None:
    case = first_case("route", top_k=8)
    assert problem(case, after("route", lambda result: tuple(each.flip(-1) for each in result))) is None
    other = problem(case, after("route", lambda result: (result[0], (result[1] + 1) % 64)))
    assert "other experts" in str(other)
    outside = problem(case, after("route", lambda result: (result[0], result[1] + 64)))
    assert "outside 0..63" in str(outside)


def test_ids_of_the_likeliest_may_be_named_once_each() -> None:
    case = first_case("token_logprobs", tokens=7)
    twice = problem(case, after("token_logprobs", lambda result: (*result[:2], result[2][:, :1].expand_as(result[2]))))
    assert twice == "one id is named twice among the likeliest of a row"


def test_another_id_than_the_draw_says_is_found() -> None:
    case = first_case("sample", tokens=7)
    assert "draw another id" in str(problem(case, after("sample", lambda ids: (ids + 1) % 4099)))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda y: y.half(), "dtype torch.float16, expected torch.bfloat16"),
        (lambda y: y[:, :-1], "shape"),
        (lambda y: (y, y), "returns 2 outputs, expected 1"),
        (lambda y: (y, None), "returns 2 outputs, expected 1"),
        (lambda y: (y,), "is of type tuple, expected a tensor"),
        (lambda y: [y], "is of type list, expected a tensor"),
        (lambda y: None, "is of type NoneType, expected a tensor"),
        (lambda y: y.float().numpy(), "is of type ndarray, expected a tensor"),
        (lambda y: y.to("meta"), "is on meta, expected cpu"),
        (lambda y: y.masked_fill(torch.ones_like(y, dtype=torch.bool).triu(20), torch.nan), "are not finite"),
        (lambda y: y * 1.2, "differ by more than 0.032"),
    ],
)
def test_form_and_values_are_held_to_the_reference(change: Callable[[torch.Tensor], Any], part: str) -> None:
    assert part in str(problem(first_case("linear", dtype="bf16", tokens=33), after("linear", change)))


def test_a_list_is_no_tuple_of_results() -> None:
    """The server takes none in place of one either."""
    assert problem(first_case("route", top_k=8), after("route", list)) == "returns 1 outputs, expected 2"


def test_rounding_of_the_dtype_is_no_fault() -> None:
    for dtype in ("bf16", "fp16"):
        assert problem(first_case("linear", dtype=dtype, tokens=33), reference.linear.reference) is None


def test_head_major_pools_are_tried_where_a_backend_has_them() -> None:
    capabilities: Capabilities = replace(CpuBackend.capabilities, head_major_pages=True)
    cases = [case for case in matrix(capabilities) if case.shape.get("head_major")]
    assert {case.op for case in cases} == {"store_kv", "attention_decode", "attention_prefill"}
    for case in (case for case in cases if case.shape["dtype"] == "fp32"):
        assert case.arguments()[2].shape[1:3] == (case.shape["kv_heads"], case.shape["page_size"])
        assert problem(case, OPS[case.op].reference) is None


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("op", ["linear", "linear_w8a8", "rms_norm", "attention_decode", "run_experts"])
def test_a_factor_that_is_wrong_by_a_fiftieth_is_found_in_every_dtype(op: str, dtype: str) -> None:
    case = first_case(op, dtype=dtype)
    assert problem(case, OPS[op].reference) is None
    assert problem(case, after(op, lambda result: result * 1.02)) is not None
