"""An op that returns NaN for one request costs that request alone, and is named; quarantined, it costs no other."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends import moe_ops, reference, sampling_ops
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import Op, Packing
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.quantised_linear import linear_w8a8
from sglk.backends.quantised_moe import run_quantised_experts
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.request import Request
from sglk.engine.runner import ModelRunner
from sglk.engine.warm_up import warm_up
from sglk.errors import RunError
from sglk.models.loader import load_model
from sglk.testing.tiny import write_tiny_model
from tests.cache.keys import key_of
from tests.engine.receiving import TOKENIZER
from tests.engine.scheduling import GREEDY, Rig, answer

LENGTH = 30
PROMPTS = {name: [(first * 50 + 7 * place) % 256 for place in range(LENGTH)] for first, name in enumerate("abc")}
TOKENS = LENGTH * len(PROMPTS)

PREFILL = {TOKENS: LENGTH + 9}
"""Where the three prompts are computed: the tenth token of the second."""
DECODE = {3: 1}
"""Where the three decode, or their logits are computed: the second row."""


@dataclass(frozen=True)
class Packed:
    """A weight in a layout of its own."""

    matrix: QuantisedMatrix

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes


class Shaky:
    """An implementation of `op` that is right but for one line of calls with so many lines, while `lines` says so."""

    def __init__(self, op: Op[..., Any], packs: bool = False) -> None:
        self.op = op
        self.packs = packs
        self.lines: dict[int, int] = {}

    def offer(self, backend: CpuBackend) -> None:
        packing = Packing(Packed, lambda packed: packed.matrix) if self.packs else None
        backend.ops.register(self.op, "shaky", self, packing=packing)

    def __call__(self, *arguments: Any) -> Any:
        result = self.op.reference(*(each.matrix if isinstance(each, Packed) else each for each in arguments))
        line = self.lines.get(len(arguments[0]))
        if line is None:
            return result
        if self.op is reference.store_kv:
            arguments[3][arguments[4][line]] = torch.inf
        else:
            first = result[0] if isinstance(result, tuple) else arguments[0] if result is None else result
            first[line] = torch.nan
        return result


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    written: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in written:
            written[architecture] = write_tiny_model(tmp_path_factory.mktemp(architecture), architecture=architecture)
        return written[architecture]

    return folder


def runner_of(folder: Path, *shaky: Shaky, quarantine: bool, **settings: Any) -> Any:
    backend = CpuBackend(num_threads=1)
    for each in shaky:
        each.offer(backend)
    runtime = RuntimeConfig(**settings)
    model = load_model(ModelConfig(name="tiny", path=str(folder)), runtime, backend).model
    return ModelRunner(model, backend, runtime, quarantine=quarantine)


def rig(
    folder: Path, shaky: Shaky, *, quarantine: bool = False, quantization: str | None = None, **settings: Any
) -> Rig:
    runner = runner_of(folder, shaky, quarantine=quarantine, quantization=quantization, **settings)
    return Rig(pool_tokens=1024, runner=runner, page_size=4, **settings)


def start(rig: Rig, **prompts: list[int]) -> dict[str, Request]:
    return {name: rig.add(name, prompt) for name, prompt in prompts.items()}


def message(request: Request) -> str:
    assert request.finish is not None
    assert request.finish.reason == "error"
    return request.finish.message or ""


CASES = [
    pytest.param("Llama", op, lines, None, id=f"{op.name}-{'prefill' if lines is PREFILL else 'decode'}")
    for op, lines in (
        (reference.embedding, PREFILL),
        (reference.add_rms_norm, PREFILL),
        (reference.rope, PREFILL),
        (reference.store_kv, PREFILL),
        (reference.attention_prefill, PREFILL),
        (reference.attention_decode, DECODE),
        (reference.silu_and_mul, DECODE),
        (reference.linear, DECODE),
        (sampling_ops.greedy, DECODE),
    )
] + [
    pytest.param("Qwen2Moe", moe_ops.route, PREFILL, None, id="route"),
    pytest.param("Qwen2Moe", moe_ops.run_experts, DECODE, None, id="run_experts"),
    pytest.param("Llama", linear_w8a8, PREFILL, "w8a8", id="linear_w8a8"),
    pytest.param("Qwen2Moe", run_quantised_experts, DECODE, "w8a8", id="run_quantised_experts"),
]


@pytest.mark.parametrize(("family", "op", "lines", "quantization"), CASES)
def test_the_poisoned_request_fails_alone_with_op_and_plugin_named(
    folders: Callable[[str], Path], family: str, op: Op[..., Any], lines: dict[int, int], quantization: str | None
) -> None:
    shaky = Shaky(op, packs=quantization is not None)
    one = rig(folders(f"{family}ForCausalLM"), shaky, quantization=quantization)
    start(one, **PROMPTS)
    expected = one.finish()
    one.cache.flush()

    shaky.lines = lines
    requests = start(one, **PROMPTS)
    one.finish()

    assert f"op {op.name} of shaky (" in message(requests["b"])
    assert "made NaN or infinity of finite numbers" in message(requests["b"])
    assert "backend.quarantine=true" in message(requests["b"])
    assert [answer(requests[name]) for name in "ac"] == [expected[name] for name in "ac"]
    # Only a prompt that had its first token was sound.
    kept = len(answer(requests["b"])) > 0
    assert one.cache.peek(key_of(PROMPTS["b"])) == (28 if kept else 0)


def test_a_chunk_that_yields_no_token_is_guarded_too(folders: Callable[[str], Path]) -> None:
    shaky = Shaky(reference.silu_and_mul)
    shaky.lines = {16: 3}
    one = rig(folders("LlamaForCausalLM"), shaky, chunked_prefill_size=16)
    request = one.add("long", PROMPTS["a"])
    assert one.step() == ["long"]
    assert "op silu_and_mul of shaky" in message(request)
    assert one.cache.peek(key_of(PROMPTS["a"])) == 0


def test_without_the_guard_a_request_fails_unexplained(folders: Callable[[str], Path]) -> None:
    shaky = Shaky(reference.silu_and_mul)
    shaky.lines = {16: 3}
    one = rig(folders("LlamaForCausalLM"), shaky, chunked_prefill_size=16, nan_guard=False)
    request = one.add("long", PROMPTS["a"])
    assert one.step() == []
    one.finish()
    assert message(request).startswith("the step failed: the model's logits are not finite; try")


@pytest.mark.parametrize(("op", "quantization"), [(reference.silu_and_mul, None), (linear_w8a8, "w8a8")])
def test_quarantine_costs_one_request_and_no_other(
    folders: Callable[[str], Path], op: Op[..., Any], quantization: str | None
) -> None:
    """The weights that the implementation had packed are there for the reference."""
    shaky = Shaky(op, packs=quantization is not None)
    one = rig(folders("LlamaForCausalLM"), shaky, quarantine=True, quantization=quantization)
    start(one, **PROMPTS)
    expected = one.finish()
    one.cache.flush()

    shaky.lines = PREFILL | DECODE
    requests = start(one, **PROMPTS)
    one.finish()
    assert message(requests["b"]).endswith("; it is switched off from now on")
    one.cache.flush()
    requests = start(one, **PROMPTS)
    one.finish()

    assert {name: answer(request) for name, request in requests.items()} == expected
    report = one.runner.op_report()
    assert [(each.op, each.provider) for each in report.quarantines] == [(op.name, "shaky")]
    assert report.faults == {(op.name, "shaky", "op"): 1}
    chosen = {choice.provider for choice in report.choices if choice.op == op.name}
    assert "shaky" not in chosen


def test_what_does_not_happen_again_is_told_so(folders: Callable[[str], Path]) -> None:
    class Once(Shaky):
        def __call__(self, *arguments: Any) -> Any:
            result = super().__call__(*arguments)
            self.lines = {}
            return result

    shaky = Once(reference.silu_and_mul)
    one = rig(folders("LlamaForCausalLM"), shaky)
    shaky.lines = PREFILL
    requests = start(one, **PROMPTS)
    one.finish()
    assert "but were when the step was computed again" in message(requests["b"])


def test_an_op_that_fails_as_it_is_traced_leaves_the_others_their_tokens(folders: Callable[[str], Path]) -> None:
    class Worse(Shaky):
        def __call__(self, *arguments: Any) -> Any:
            if self.lines == {}:
                raise RuntimeError("device on fire")
            result = super().__call__(*arguments)
            self.lines = {}
            return result

    shaky = Worse(sampling_ops.greedy)
    one = rig(folders("LlamaForCausalLM"), shaky)
    shaky.lines = DECODE
    requests = start(one, **PROMPTS)
    one.step()
    assert message(requests["b"]).startswith("the step failed: the model's logits are not finite; try")
    assert [len(answer(requests[name])) for name in "ac"] == [1, 1]


def test_a_faulty_sampler_is_named_for_the_request_whose_logits_it_spoils(folders: Callable[[str], Path]) -> None:
    shaky = Shaky(sampling_ops.adjust_logits)
    one = rig(folders("LlamaForCausalLM"), shaky)
    biased = replace(GREEDY, logit_bias=((65, 1.0),))
    request = one.add("biased", PROMPTS["a"], biased)
    shaky.lines = {1: 0}
    one.finish()
    assert "op adjust_logits of shaky" in message(request)


@pytest.mark.parametrize("quarantine", [True, False])
def test_an_engine_starts_without_the_ops_that_quarantine_switches_off(
    folders: Callable[[str], Path], quarantine: bool
) -> None:
    shaky = [Shaky(op) for op in (reference.embedding, reference.attention_decode)]
    for each in shaky:
        each.lines = {1: 0}
    runner = runner_of(folders("LlamaForCausalLM"), *shaky, quarantine=quarantine)
    engine = Engine(runner, TOKENIZER, RuntimeConfig(max_total_tokens=256))
    engine.start()
    try:
        if quarantine:
            warm_up(engine)
            assert [each.op for each in engine.op_report().quarantines] == ["embedding", "attention_decode"]
        else:
            with pytest.raises(RunError, match="embedding of shaky"):
                warm_up(engine)
    finally:
        engine.shutdown()
