"""Models with any number of experts, on chips whose kernels take only some."""

import logging
from typing import Any

import pytest
import torch

from sglk.backends import cpu_moe_ops, moe_ops
from sglk.backends.constraints import multiple_of
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import REFERENCE, OpRegistry
from sglk.config.schema import RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.models.registry import model_class
from sglk.testing.tiny import tiny_config
from sglk.testing.tiny_weights import tiny_weights
from tests.models.greedy import ArrayWeights, Stepper, oracle, spec_of, tiny_runner

PROMPTS = [list(range(3, 30)), [200], list(range(90, 80, -1))]
COUNT = 6


def answers(runner: ModelRunner, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    stepper = Stepper(runner, 16, 12)
    requests = [stepper.add(prompt) for prompt in prompts]
    stepper.step(prefills=[(request, 64) for request in requests])
    for _ in range(COUNT - 1):
        stepper.step(decodes=requests)
    return [stepper.answer(request) for request in requests]


@pytest.mark.parametrize(
    ("family", "experts", "top_k"),
    [("Qwen3Moe", 1, 1), ("Qwen2Moe", 6, 6), ("Qwen3Moe", 10, 1), ("Qwen3Moe", 62, 2), ("Mixtral", 64, 64)],
)
def test_any_number_of_experts_gives_the_tokens_of_transformers(family: str, experts: int, top_k: int) -> None:
    key = "num_local_experts" if family == "Mixtral" else "num_experts"
    config = tiny_config(f"{family}ForCausalLM", **{key: experts, "num_experts_per_tok": top_k})
    assert answers(tiny_runner(config)) == oracle(config, PROMPTS, COUNT)


def test_all_tokens_of_a_step_may_choose_one_expert() -> None:
    chosen: list[int] = []

    def counted(
        x_TE: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        chosen.append(len(ids.unique()))
        return cpu_moe_ops.run_experts(x_TE, gate_up, down, weights, ids)

    backend = CpuBackend(num_threads=1)
    backend.ops.register(moe_ops.run_experts, "counting", counted)
    config = tiny_config("Qwen3MoeForCausalLM", num_experts_per_tok=1)
    # Attention over equal values is that value, so all tokens of this prompt are one vector.
    prompts = [[7] * 40]
    assert answers(runner_on(backend, config), prompts) == oracle(config, prompts, COUNT)
    assert chosen[:2] == [1, 1]


def aligned(
    x_TE: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """A kernel that would break where its demand is not met."""
    assert len(gate_up) % 4 == 0
    return moe_ops.run_experts.reference(x_TE, gate_up, down, weights, ids)


@pytest.mark.parametrize(
    ("experts", "provider"), [(6, "cpu_kernels"), (8, "vendor"), (62, "cpu_kernels"), (64, "vendor")]
)
def test_a_kernel_runs_only_where_it_takes_the_number_of_experts(experts: int, provider: str) -> None:
    backend = CpuBackend(num_threads=1)
    backend.ops.register(moe_ops.run_experts, "vendor", aligned, multiple_of("experts", 4))
    config = tiny_config("Qwen3MoeForCausalLM", num_experts=experts)
    assert answers(runner_on(backend, config)) == oracle(config, PROMPTS, COUNT)
    [choice] = [choice for choice in backend.ops.choices() if choice.op == "run_experts"]
    assert choice.provider == provider
    assert (choice.reason == "vendor: experts % 4 == 0") == (provider == "cpu_kernels")


def test_a_refused_number_of_experts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    backend = VendorChip()
    with caplog.at_level(logging.WARNING):
        runner = runner_on(backend, tiny_config("Qwen3MoeForCausalLM", num_hidden_layers=3))
        said = [record.getMessage() for record in caplog.records if "run_experts" in record.getMessage()]
        assert len(said) == 1, "one line for three layers, before anything runs"
        assert "experts=6" in said[0]
        assert "vendor: experts % 4 == 0" in said[0]
        answers(runner)
        assert len([record for record in caplog.records if "run_experts" in record.getMessage()]) == 1
    [choice] = [choice for choice in backend.ops.choices() if choice.op == "run_experts"]
    assert (choice.provider, choice.fallback) == (REFERENCE, True)


class VendorChip(CpuBackend):
    """A chip whose one kernel wants a multiple of 4 experts."""

    def __init__(self) -> None:
        super().__init__(num_threads=1)
        self.ops = OpRegistry("warn")
        self.ops.register(moe_ops.run_experts, "vendor", aligned, multiple_of("experts", 4))


def runner_on(backend: CpuBackend, config: dict[str, Any]) -> ModelRunner:
    spec = spec_of(config)
    model = model_class(spec.architecture)(spec, backend, torch.float32)
    model.load_weights(ArrayWeights(tiny_weights(config)))
    return ModelRunner(model, backend, RuntimeConfig())
