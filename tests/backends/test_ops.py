"""The registry picks one implementation per shape class, before any kernel runs, and says why."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglk.backends import reference
from sglk.backends.constraints import Constraint, Traits, at_most, multiple_of, one_of
from sglk.backends.cpu import CpuBackend
from sglk.backends.deny import denials, warn_of_idle
from sglk.backends.failing_op import failing_op
from sglk.backends.op_results import RESULTS, result_flaw
from sglk.backends.ops import REFERENCE, Denial, Fallback, OpRegistry, Packing, known_ops
from sglk.config.schema import DenyConfig
from sglk.errors import BackendError, CapacityError, ConfigError
from sglk.operators.cases import OPS, matrix


def double(x_T2F: torch.Tensor) -> torch.Tensor:
    return x_T2F.chunk(2, dim=-1)[0] * 2


def whole(x_T2F: torch.Tensor) -> torch.Tensor:
    return x_T2F


def negate(x_T2F: torch.Tensor) -> torch.Tensor:
    return -x_T2F.chunk(2, dim=-1)[0]


def registry(fallback: Fallback = "warn") -> OpRegistry:
    ops = OpRegistry(fallback)
    ops.register(reference.silu_and_mul, "chip", double, multiple_of("size", 4), one_of("dtype", "fp16", "bf16"))
    return ops


def test_a_shape_within_the_constraints_runs_on_the_chip() -> None:
    bound = registry("forbid").select(reference.silu_and_mul, size=8, dtype="fp16")
    assert bound(torch.ones(1, 4)).tolist() == [[2, 2]]
    assert (bound.choice.provider, bound.choice.fallback) == ("chip", False)


def test_an_implementation_may_call_the_op_for_what_it_leaves_to_the_reference() -> None:
    def narrow(x_T2F: torch.Tensor) -> torch.Tensor:
        return double(x_T2F) if x_T2F.shape[1] <= 4 else reference.silu_and_mul(x_T2F)

    ops = OpRegistry()
    ops.register(reference.silu_and_mul, "chip", narrow)
    bound = ops.select(reference.silu_and_mul, size=8)
    assert bound(torch.ones(1, 4)).tolist() == [[2, 2]]
    assert torch.equal(bound(torch.ones(1, 8)), reference.silu_and_mul.reference(torch.ones(1, 8)))


@pytest.mark.parametrize(
    ("size", "dtype", "demand"), [(6, "fp16", "size % 4 == 0"), (8, "fp32", "dtype in {fp16, bf16}")]
)
def test_a_shape_outside_runs_the_reference_and_the_choice_says_why(size: int, dtype: str, demand: str) -> None:
    bound = registry().select(reference.silu_and_mul, size=size, dtype=dtype)
    assert torch.equal(bound(torch.ones(1, 4)), reference.silu_and_mul.reference(torch.ones(1, 4)))
    assert (bound.choice.provider, bound.choice.fallback) == (REFERENCE, True)
    assert bound.choice.reason == f"chip: {demand}"


def test_a_fallback_is_logged_once_per_shape_class(caplog: pytest.LogCaptureFixture) -> None:
    ops = registry()
    with caplog.at_level(logging.INFO):
        handles = {ops.select(reference.silu_and_mul, size=6, dtype="fp16") for _ in range(5)}
        ops.select(reference.silu_and_mul, size=10, dtype="fp16")
    assert len(handles) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"op silu_and_mul for dtype=fp16, size={size} runs the reference (chip: size % 4 == 0)" for size in (6, 10)
    ]


def test_allow_falls_back_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        registry("allow").select(reference.silu_and_mul, size=6, dtype="fp16")
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_forbid_refuses_with_op_shape_reason_and_way_out() -> None:
    with pytest.raises(BackendError, match=r"'silu_and_mul' for dtype=fp16, size=6 .*size % 4 == 0.*fallback=warn"):
        registry("forbid").select(reference.silu_and_mul, size=6, dtype="fp16")


def test_an_unknown_fallback_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="allow, warn, forbid"):
        OpRegistry("maybe")  # type: ignore[arg-type]


def test_the_implementation_registered_last_is_preferred() -> None:
    ops = registry()
    ops.register(reference.silu_and_mul, "vendor", negate, at_most("size", 100))
    assert ops.select(reference.silu_and_mul, size=8, dtype="fp16").choice.provider == "vendor"
    wide = ops.select(reference.silu_and_mul, size=128, dtype="fp16").choice
    assert (wide.provider, wide.reason) == ("chip", "vendor: size <= 100")


def test_a_quarantine_switches_every_handle_that_layers_hold() -> None:
    ops = registry()
    ops.register(reference.silu_and_mul, "vendor", negate)
    bound = ops.select(reference.silu_and_mul, size=8, dtype="fp16")
    assert bound(torch.ones(1, 2)).item() == -1
    assert ops.quarantine(reference.silu_and_mul, "vendor", "returned NaN") == 1
    assert bound(torch.ones(1, 2)).item() == 2
    assert ops.choices() == [bound.choice]
    assert bound.choice.reason == "vendor: returned NaN"


def test_a_denied_implementation_is_passed_over_with_the_reason() -> None:
    ops = OpRegistry(deny=[Denial("silu_and_mul", "vendor", "wrong above 8192 tokens")])
    ops.register(reference.silu_and_mul, "chip", double)
    ops.register(reference.silu_and_mul, "vendor", negate)
    choice = ops.select(reference.silu_and_mul, size=8, dtype="fp16").choice
    assert (choice.provider, choice.reason) == ("chip", "vendor: denied, wrong above 8192 tokens")


def test_a_denial_of_everybody_leaves_the_reference() -> None:
    ops = OpRegistry(deny=denials({"silu_and_mul": DenyConfig(reason="slow")}))
    ops.register(reference.silu_and_mul, "chip", double)
    choice = ops.select(reference.silu_and_mul, size=8, dtype="fp16").choice
    assert (choice.provider, choice.reason, choice.fallback) == (REFERENCE, "chip: denied, slow", True)


def test_an_op_that_does_not_exist_cannot_be_denied() -> None:
    with pytest.raises(ConfigError, match=r"^backend.deny names no op 'silu_and_mull'; did you mean 'silu_and_mul'\?$"):
        denials({"silu_and_mull": DenyConfig(reason="slow")})


def test_a_denial_that_takes_nothing_out_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ops = OpRegistry(deny=denials({"silu_and_mul": DenyConfig("chpi", "slow"), "rope": DenyConfig("chip", "wrong")}))
    ops.register(reference.silu_and_mul, "chip", double)
    ops.register(reference.rope, "chip", reference.rope.reference)
    warn_of_idle(ops)
    assert [record.getMessage() for record in caplog.records] == [
        "backend.deny.silu_and_mul takes nothing out: no implementation of provider 'chpi'; offered by chip"
    ]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (lambda x: x, "float32 [3, 8] on cpu"),
        (lambda x: x[:, :4].double(), "float64 [3, 4] on cpu"),
        (lambda x: x[:, :4].to("meta"), "float32 [3, 4] on meta"),
        (lambda x: None, "nothing"),
        (lambda x: (x[:, :4],), "a tuple"),
    ],
)
def test_a_result_of_another_form_is_the_fault_of_the_op_that_returned_it(
    result: Callable[[torch.Tensor], torch.Tensor], found: str
) -> None:
    ops = OpRegistry()

    def returns(x_T2F: torch.Tensor) -> torch.Tensor:
        return result(x_T2F)

    ops.register(reference.silu_and_mul, "chip", returns)
    with pytest.raises(BackendError, match=re.escape(f"it returned {found}, not float32 [3, 4] on cpu;")) as raised:
        ops.select(reference.silu_and_mul, size=8, dtype="fp32")(torch.ones(3, 8))
    choice = failing_op(raised.value)
    assert choice is not None
    assert (choice.op, choice.provider) == ("silu_and_mul", "chip")


def test_an_op_that_takes_over_is_looked_at_too() -> None:
    ops = OpRegistry()
    ops.register(reference.silu_and_mul, "chip", whole)
    ops.register(reference.silu_and_mul, "vendor", double)
    bound = ops.select(reference.silu_and_mul, size=8, dtype="fp32")
    bound(torch.ones(3, 8))
    ops.quarantine(reference.silu_and_mul, "vendor", "returned NaN")
    with pytest.raises(BackendError, match="it returned"):
        bound(torch.ones(3, 8))


def test_every_op_has_a_form_and_a_result_of_the_reference_has_it() -> None:
    assert {op.name for op in RESULTS} == set(known_ops())
    for case in matrix(CpuBackend.capabilities):
        arguments = case.arguments()
        result = OPS[case.op].reference(*arguments)
        assert result_flaw(OPS[case.op], result, arguments, {}) is None, case


def broken(traits: Traits) -> bool:
    raise ZeroDivisionError("of its own")


@pytest.mark.parametrize(
    ("demand", "cause"),
    [(multiple_of("experts", 4), "KeyError: 'experts'"), (Constraint("odd", broken), "ZeroDivisionError: of its own")],
)
def test_a_demand_that_cannot_be_checked_names_whose_it_is(demand: Constraint, cause: str) -> None:
    ops = OpRegistry("allow")
    ops.register(reference.silu_and_mul, "chip", double, demand)
    words = f"op 'silu_and_mul' of 'chip': its demand {demand.text!r} cannot be checked ({cause}) for a shape class of"
    with pytest.raises(BackendError, match=re.escape(f"{words} size=8; correct the plugin, or take it out with")):
        ops.select(reference.silu_and_mul, size=8)


def test_a_denial_takes_out_what_has_a_demand_that_cannot_be_checked() -> None:
    ops = OpRegistry("allow", [Denial("silu_and_mul", "chip", "broken")])
    ops.register(reference.silu_and_mul, "chip", double, multiple_of("experts", 4))
    assert ops.select(reference.silu_and_mul, size=8).choice.provider == REFERENCE


@pytest.mark.parametrize(
    ("op", "provider", "function", "demands", "flaw"),
    [
        ("silu_and_mull", "chip", double, (), "there is no op 'silu_and_mull'; did you mean 'silu_and_mul'?"),
        (reference.silu_and_mul, "reference", double, (), "provider 'reference' is no name for one"),
        (reference.silu_and_mul, "", double, (), "provider '' is no name for one"),
        (reference.silu_and_mul, "chip", None, (), "its implementation is None, not a function"),
        (reference.silu_and_mul, "chip", double, ("size % 4 == 0",), "its demand 'size % 4 == 0' is no Constraint"),
    ],
)
def test_what_is_no_implementation_is_refused_at_once(
    op: Any, provider: str, function: Any, demands: tuple[Any, ...], flaw: str
) -> None:
    with pytest.raises(BackendError, match=re.escape(f"of {provider!r} cannot be registered: {flaw}")):
        OpRegistry().register(op, provider, function, *demands)


def test_a_weight_that_cannot_be_packed_names_whose_fault_it_is() -> None:
    ops = OpRegistry("allow")
    packing = Packing(pack=lambda _: 1 / 0, unpack=lambda _: [][0])
    for op in (reference.linear, reference.embedding):
        ops.register(op, "chip", op.reference, packing=packing)
    bound = ops.select(reference.linear, dtype="fp32").packing
    assert bound is ops.select(reference.embedding, dtype="fp32").packing, "a weight would be packed twice"
    assert bound is not None
    with pytest.raises(
        BackendError, match=r"^'chip' cannot pack a weight: ZeroDivisionError: division by zero; correct"
    ):
        bound.pack(None)
    with pytest.raises(BackendError, match=r"^'chip' cannot unpack a weight: IndexError: list index out of range;"):
        bound.unpack(None)


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("CUDA out of memory.\nTried")]
)
def test_a_weight_that_there_is_no_memory_for_is_nobodys_fault(error: Exception) -> None:
    def pack(_: object) -> None:
        raise error

    ops = OpRegistry("allow")
    ops.register(reference.linear, "chip", reference.linear.reference, packing=Packing(pack, pack))
    bound = ops.select(reference.linear, dtype="fp32").packing
    assert bound is not None
    with pytest.raises(CapacityError, match=r"^'chip' has too little memory to pack a weight: .*; free some,.*"):
        bound.pack(None)


def test_who_watches_ops_goes_on_where_another_ends() -> None:
    ops, seen = registry(), []
    bound = ops.select(reference.silu_and_mul, size=4, dtype="fp16")

    def watch(name: str) -> Callable[..., Any]:
        def observer(bound: Any, *arguments: Any) -> Any:
            seen.append(name)
            return bound.function(*arguments)

        return observer

    with ops.observed(watch("outer")):
        with ops.observed(watch("inner")):
            bound(torch.ones(1, 4))
        bound(torch.ones(1, 4))
        # What was put in its place meanwhile is nobody's to take away again.
        ops.quarantine(reference.silu_and_mul, "chip", "for a try")
    assert bound(torch.ones(1, 4)).equal(reference.silu_and_mul.reference(torch.ones(1, 4)))
    assert seen == ["inner", "outer"]
