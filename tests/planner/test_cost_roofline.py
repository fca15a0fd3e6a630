"""Without a calibration a step costs what it takes on the simulated device, to the last digit."""

from dataclasses import replace
from pathlib import Path

import pytest

from sglk.backends.sim import SimBackend
from sglk.config.compose import compose
from sglk.config.plan_schema import PlanConfig
from sglk.engine.loading import load_runner
from sglk.engine.runner import ModelRunner
from sglk.errors import ConfigError
from sglk.planner.calibration.batches import Pool
from sglk.planner.cost.model import cost_model
from sglk.planner.cost.shape import StepShape
from sglk.testing.tiny import write_tiny_model

SIM = ("backend=sim", "backend.options.speed=0", "profiles=none")

SHAPES = (
    StepShape(prefills=((1, 1),), logits=1),
    StepShape(prefills=((100, 100),)),
    StepShape(prefills=((40, 90), (7, 7)), logits=2),
    StepShape(decodes=(5,), logits=1),
    StepShape(decodes=(100, 7, 33), logits=3, drawn=2),
    StepShape(prefills=((60, 200),), decodes=(31, 64), logits=2, drawn=1),
)


def on_the_device(config: PlanConfig) -> list[float]:
    """Return the seconds of SHAPES on the clock of the simulated device."""
    runner, _ = load_runner(config)
    assert isinstance(runner, ModelRunner)
    assert isinstance(runner.backend, SimBackend)
    page_size = config.runtime.page_size
    pool = Pool(2048 // page_size, page_size, runner.vocab_size)
    runner.allocate_kv(pool.pages, page_size)
    seconds = []
    for shape in SHAPES:
        before_s = runner.backend.clock.busy_s
        runner.run(pool.batch(shape))
        seconds.append(runner.backend.clock.busy_s - before_s)
    return seconds


@pytest.mark.parametrize(
    ("architecture", "keys", "chip", "words"),
    [
        ("LlamaForCausalLM", {"tie_word_embeddings": True, "mlp_bias": True, "attention_bias": True}, "h100", ()),
        ("MistralForCausalLM", {"sliding_window": 48}, "h100", ("runtime.kv_cache_dtype=fp8_e4m3",)),
        ("Qwen2ForCausalLM", {}, "kunlun", ("runtime.quantization=w8a8",)),
        ("Qwen3ForCausalLM", {}, "l20", ("runtime.tp_size=2", "runtime.quantization=w4a16")),
        ("MixtralForCausalLM", {"num_local_experts": 8}, "a100_80g", ("runtime.tp_size=2",)),
        ("Qwen2MoeForCausalLM", {}, "cpu", ("runtime.kv_cache_dtype=int8", "backend.options.launch_us=9")),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}, "h100", ("runtime.quantization=fp8",)),
    ],
)
def test_a_step_costs_what_the_simulated_device_takes(
    architecture: str, keys: dict[str, object], chip: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, **keys)
    config = compose("plan", (f"chip={chip}", f"model={folder}", *SIM, *words)).config
    model = cost_model(config)
    assert model.basis.simulated
    assert [model.step_s(shape) for shape in SHAPES] == pytest.approx(on_the_device(config), rel=1e-9)
    for shape in SHAPES:
        assert sum(model.parts(shape).values()) == pytest.approx(model.step_s(shape))


def test_a_chip_without_figures_has_no_price() -> None:
    config = compose("plan", ("chip=cpu", "model=smollm2", "profiles=none")).config
    with pytest.raises(ConfigError, match=r"chip 'cpu' states no bandwidth_gb_s and no peak_tflops.*sglk calibrate"):
        cost_model(config)
    figures = replace(config.chip, bandwidth_gb_s=50.0, peak_tflops={"fp32": 0.2})
    assert cost_model(replace(config, chip=figures)).step_s(SHAPES[0]) > 0
