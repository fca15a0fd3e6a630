"""What ranks bring together is priced as the layers do it: as often, as many bytes, summed or laid side by side."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends.collectives import ProcessGroup, Work
from sglk.backends.cpu import CpuBackend
from sglk.backends.sim_rates import link_of
from sglk.config.compose import compose
from sglk.config.plan_schema import PlanConfig
from sglk.engine.rank_runner import RankRunner
from sglk.planner.calibration.batches import Pool
from sglk.planner.calibration.entries import Way
from sglk.planner.cost.model import cost_model
from sglk.planner.cost.ops import Part
from sglk.planner.cost.shape import StepShape
from sglk.planner.model import model_of
from sglk.testing.tiny import write_tiny_model
from tests.parallel.in_threads import from_files

SHAPES = (
    StepShape(prefills=((9, 9),), logits=1),
    StepShape(prefills=((3, 12), (2, 2)), decodes=(31,), logits=3),
)
EXCHANGES = list[tuple[bool, int]]
"""Whether it was gathered, and the bytes that each rank has afterwards."""


class Recording:
    """The ranks' own group, with a list of what went over it."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.made = group, EXCHANGES()

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        self.made += [(False, tensor.nbytes) for tensor in tensors]
        return self.group.allreduce(tensors)

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor]) -> Work:
        self.made.append((True, sum(tensor.nbytes for tensor in output_tensors[0])))
        return self.group.allgather(output_tensors, input_tensors)


def issued(config: PlanConfig, monkeypatch: pytest.MonkeyPatch) -> list[EXCHANGES]:
    """Return what each rank of the real engine exchanges in SHAPES, one step after the other."""
    groups: list[Recording] = []
    own = CpuBackend.process_group

    def recorded(backend: CpuBackend, store: Any, rank: int, size: int, timeout: timedelta) -> Recording:
        groups.append(Recording(own(backend, store, rank, size, timeout)))
        return groups[-1]

    monkeypatch.setattr(CpuBackend, "process_group", recorded)

    def steps(part: RankRunner) -> None:
        runner, page_size = part.runner, config.runtime.page_size
        pool = Pool(256 // page_size, page_size, runner.vocab_size)
        runner.allocate_kv(pool.pages, page_size)
        for shape in SHAPES:
            runner.run(pool.batch(shape))

    runtime = config.runtime
    assert config.model.path is not None
    assert runtime.tp_size is not None
    from_files(
        Path(config.model.path),
        runtime.tp_size,
        steps,
        quantization=runtime.quantization,
        enable_deterministic_inference=runtime.enable_deterministic_inference,
    )
    return [group.made for group in groups]


def priced(config: PlanConfig) -> EXCHANGES:
    exchanges = Way.of(config).features.ops.exchanges
    return [
        (each.gathered, shape.tokens * each.token_bytes)
        for shape in SHAPES
        for each, calls in exchanges.items()
        for _ in range(calls)
    ]


@pytest.mark.parametrize(
    ("architecture", "numbers", "words", "gathered"),
    [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, (), True),
        ("LlamaForCausalLM", {}, ("runtime.enable_deterministic_inference=false",), False),
        # 50 numbers of a line are shared by four: parts are filled up.
        ("Qwen2ForCausalLM", {"hidden_size": 50, "head_dim": 16}, ("runtime.tp_size=4",), True),
        ("Qwen3ForCausalLM", {}, ("runtime.enable_deterministic_inference=false", "runtime.quantization=w8a8"), False),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0], "num_hidden_layers": 3}, (), True),
        ("Qwen2MoeForCausalLM", {"shared_expert_intermediate_size": 64}, (), True),
        # Experts in w8a8 have one scale for all inputs of an output, so that no rank can compute its part of a sum.
        (
            "MixtralForCausalLM",
            {},
            ("runtime.enable_deterministic_inference=false", "runtime.quantization=w8a8"),
            True,
        ),
        ("MixtralForCausalLM", {}, ("runtime.enable_deterministic_inference=false",), False),
    ],
)
def test_exchanges_are_those_of_the_engine(
    architecture: str,
    numbers: dict[str, Any],
    words: tuple[str, ...],
    gathered: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, num_attention_heads=4, **numbers)
    config = compose(
        "plan", ("chip=cpu", f"model={folder}", "profiles=none", "runtime.tp_size=2", "runtime.page_size=16", *words)
    ).config
    expected = priced(config)
    assert {kind for kind, _ in expected} == {gathered}
    by_rank = issued(config, monkeypatch)
    assert [sorted(made) for made in by_rank] == [sorted(expected)] * (config.runtime.tp_size or 0)


def test_a_card_that_needs_whole_activations_gathers_and_pays_for_it() -> None:
    words = ("chip=a100_80g", "model=qwen7b", "runtime.tp_size=2", "profiles=none", "calibration=none")
    shape = StepShape(decodes=(100,) * 8, logits=8)

    def collectives_s(*more: str) -> float:
        return cost_model(compose("plan", (*words, *more)).config).parts(shape)["collectives"]

    config = compose("plan", words).config
    link = link_of(config.chip)
    spec = model_of(config).spec
    hidden, inner = 8 * spec.hidden_size * 2, 8 * spec.intermediate_size * 2
    assert collectives_s() == pytest.approx(spec.num_hidden_layers * 2 * link.allreduce_s(hidden, 2))
    gathered_s = 3 * link.allgather_s(hidden, 2) + link.allgather_s(inner, 2)
    for way in ("runtime.quantization=w8a8", "runtime.enable_deterministic_inference=true"):
        assert collectives_s(way) == pytest.approx(spec.num_hidden_layers * gathered_s)
    # One process stands for all simulated ranks, which have no bits to keep.
    assert collectives_s("backend=sim", "runtime.quantization=w8a8") == pytest.approx(collectives_s())


def test_products_in_fp8_gather_and_pay_for_it_where_the_card_rounds_activations_too() -> None:
    """`sglk.backends.cuda` multiplies fp8 in 16 bits before compute capability 9.0."""
    words = ("model=qwen7b", "runtime.tp_size=2", "profiles=none", "calibration=none", "runtime.quantization=fp8")
    prompt = StepShape(((4096, 4096),), logits=1)

    def parts(*more: str) -> Mapping[Part, float]:
        return cost_model(compose("plan", (*words, *more)).config).parts(prompt)

    for chip, rounds in {"h100": True, "l20": False, "rtx4090": False}.items():
        way = Way.of(compose("plan", (*words, f"chip={chip}")).config)
        assert way.gathers is rounds
        sums = {each.gathered for each in way.features.ops.exchanges}
        assert sums == {rounds}
        # Weights of 8 bits multiplied in 16 take the arithmetic of 16.
        in_16_bits = parts(f"chip={chip}", "runtime.quantization=null")["linear"]
        ratio = parts(f"chip={chip}")["linear"] / in_16_bits
        assert ratio == pytest.approx(0.5 if rounds else 1.0, abs=0.05)


def test_a_gathered_line_is_half_of_a_sum_to_a_calibration() -> None:
    words = ("chip=cpu", "model=smollm2", "runtime.tp_size=3", "profiles=none")
    gathers = Way.of(compose("plan", words).config).features
    sums = Way.of(compose("plan", (*words, "runtime.enable_deterministic_inference=false")).config).features
    assert sums.of_tokens(7)["sum_bytes"] == 7 * 30 * 2 * 576 * 4
    assert gathers.of_tokens(7)["sum_bytes"] == 7 * 30 * (3 * 576 + 1536) * 4 / 2
    assert replace(gathers, ops=sums.ops) == sums
