"""A chip that brings no op, or only some, gives the same tokens through the reference."""

import logging

import pytest
import torch

from sglk.backends import cpu_ops, reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import REFERENCE, OpRegistry
from sglk.config.schema import RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.models.registry import model_class
from sglk.testing.tiny import tiny_config
from sglk.testing.tiny_weights import tiny_weights
from tests.models.greedy import ArrayWeights, Stepper, oracle, spec_of

CONFIGS = {
    "llama": tiny_config(),
    "qwen2-moe": tiny_config("Qwen2MoeForCausalLM", use_sliding_window=True, sliding_window=24),
}
PROMPTS = [list(range(3, 50)), list(range(60, 70))]


class BareChip(CpuBackend):
    """A device without ops of its own."""

    name = "bare"

    def __init__(self) -> None:
        super().__init__(num_threads=1)
        self.ops = OpRegistry("warn")


class OneOpChip(BareChip):
    """A device that only knows how to decode."""

    name = "one-op"

    def __init__(self) -> None:
        super().__init__()
        self.ops.register(reference.attention_decode, self.name, cpu_ops.attention_decode)


@pytest.mark.parametrize("chip", [BareChip, OneOpChip])
@pytest.mark.parametrize("name", CONFIGS)
def test_missing_ops_change_no_token(name: str, chip: type[BareChip], caplog: pytest.LogCaptureFixture) -> None:
    backend, config = chip(), CONFIGS[name]
    with caplog.at_level(logging.WARNING):
        spec = spec_of(config)
        model = model_class(spec.architecture)(spec, backend, torch.float32)
        model.load_weights(ArrayWeights(tiny_weights(config)))
        stepper = Stepper(ModelRunner(model, backend, RuntimeConfig()), 16, 8)
    requests = [stepper.add(prompt) for prompt in PROMPTS]
    stepper.step(prefills=[(request, 64) for request in requests])
    for _ in range(5):
        stepper.step(decodes=requests)
    assert [stepper.answer(request) for request in requests] == oracle(config, PROMPTS, 6)
    own = {choice.op for choice in backend.ops.choices() if choice.provider != REFERENCE}
    assert own == (set() if chip is BareChip else {"attention_decode"})
    assert all(choice.fallback for choice in backend.ops.choices() if choice.op not in own)
    # One line per shape class, however many layers and steps ran.
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == sum(choice.fallback for choice in backend.ops.choices())
