"""The estimated speed of a plan is the price of the steps that the scheduler would make."""

from dataclasses import replace

import pytest

from sglk.config.compose import compose
from sglk.config.fleet import alone
from sglk.config.plan_schema import PlanConfig, RoomConfig
from sglk.errors import ConfigError
from sglk.planner.cost.model import cost_model
from sglk.planner.cost.shape import StepShape
from sglk.planner.plan import ReplicaPlan, plan_deployment
from sglk.planner.speed import Speed, estimated_speed, prefill_s


def planned(*words: str) -> ReplicaPlan:
    config: PlanConfig = compose("plan", ("model=qwen7b", "profiles=none", *words)).config
    (plan,) = plan_deployment(alone(config), RoomConfig(context_length=4000)).replicas
    return plan


def test_times_are_those_of_the_steps() -> None:
    plan = planned("chip=h100", "runtime.chunked_prefill_size=896", "runtime.max_running_requests=24")
    model, speed = cost_model(plan.config), estimated_speed(plan)
    assert isinstance(speed, Speed)
    chunks = [((896, 896),), ((896, 1792),), ((208, 2000),)]
    steps = [StepShape(chunk, logits=int(chunk == chunks[-1])) for chunk in chunks]
    assert speed.ttft_s == pytest.approx(sum(map(model.step_s, steps)))
    assert speed.tpot_alone_s == pytest.approx(model.step_s(StepShape(decodes=(3000,), logits=1)))
    assert (speed.prompt, speed.context, speed.requests) == (2000, 3000, 24)
    assert speed.output_tokens_per_s == pytest.approx(24 / model.step_s(StepShape(decodes=(3000,) * 24, logits=24)))
    whole = replace(plan.config.runtime, chunked_prefill_size=-1)
    assert prefill_s(model, 2000, whole) == pytest.approx(model.step_s(StepShape(((2000, 2000),), logits=1)))


def test_where_nothing_is_known_it_says_so() -> None:
    cpu = planned("chip=cpu", "model=smollm2", "runtime.max_total_tokens=4096")
    for choice in ("auto", "none"):
        assert isinstance(why := estimated_speed(cpu, choice), str)
        assert "sglk calibrate" in why
    with pytest.raises(ConfigError, match=r"cannot read the calibration 'absent.json'"):
        estimated_speed(cpu, "absent.json")
    too_large = planned("chip=rtx4090", "model=qwen72b")
    assert estimated_speed(too_large) is None


@pytest.mark.parametrize(
    ("words", "assumed"),
    [
        (("chip=cpu", "model=smollm2", "backend=sim"), ["chip.bandwidth_gb_s=100.0, chip.peak_tflops=5.0"]),
        (("chip=h100", "chip.bandwidth_gb_s=null", "backend=sim"), ["chip.bandwidth_gb_s=100.0"]),
        # Only ranks that meet need a link.
        (("chip=h100", "chip.interconnect_gb_s=null", "backend=sim", "runtime.tp_size=1"), []),
        (
            ("chip=h100", "chip.interconnect_gb_s=null", "backend=sim", "runtime.tp_size=2"),
            ["chip.interconnect_gb_s=25.0"],
        ),
        (("chip=h100", "backend=sim"), []),
        (("chip=h100",), []),
    ],
)
def test_figures_that_a_simulation_assumes_are_told(words: tuple[str, ...], assumed: list[str]) -> None:
    notes = cost_model(planned(*words).config, "none").basis.notes
    assert list(notes) == [f"assumed, as the chip's file does not say: {each}" for each in assumed]


def test_a_dtype_that_the_chip_has_no_rate_for_is_told() -> None:
    plan = planned("chip=kunlun_p800", "runtime.quantization=w8a8")
    speed = estimated_speed(plan, "none")
    assert isinstance(speed, Speed)
    assert speed.basis.notes == ("chip.peak_tflops has none for products in int8; its lowest rate is taken",)
    assert not cost_model(planned("chip=kunlun_p800").config, "none").basis.notes
    assert not cost_model(planned("chip=kunlun", "runtime.quantization=w8a8").config, "none").basis.notes
