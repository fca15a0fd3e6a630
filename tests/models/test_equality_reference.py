"""A chip that brings no op, or only some, gives the same tokens through the reference."""

import logging

import pytest
import torch

from sglk.backends import cpu_ops, reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import REFERENCE, OpRegistry, known_ops
from sglk.config.schema import RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.models.llama import LlamaForCausalLM
from sglk.testing.tiny import tiny_config, tiny_weights
from tests.models.greedy import ArrayWeights, Stepper, oracle, spec_of

CONFIG = tiny_config()
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
def test_missing_ops_change_no_token(chip: type[BareChip], caplog: pytest.LogCaptureFixture) -> None:
    backend = chip()
    with caplog.at_level(logging.WARNING):
        model = LlamaForCausalLM(spec_of(CONFIG), backend, torch.float32)
        model.load_weights(ArrayWeights(tiny_weights(CONFIG)))
        stepper = Stepper(ModelRunner(model, backend, RuntimeConfig()), 16, 8)
    requests = [stepper.add(prompt) for prompt in PROMPTS]
    stepper.step(prefills=[(request, 64) for request in requests])
    for _ in range(5):
        stepper.step(decodes=requests)
    assert [stepper.answer(request) for request in requests] == oracle(CONFIG, PROMPTS, 6)
    own = {choice.op for choice in backend.ops.choices() if choice.provider != REFERENCE}
    assert own == (set() if chip is BareChip else {"attention_decode"})
    fallen_back = {choice.op for choice in backend.ops.choices() if choice.fallback}
    assert fallen_back | own == set(known_ops())
    # One line per shape class, however many layers and steps ran.
    assert len(caplog.records) == sum(choice.fallback for choice in backend.ops.choices())
