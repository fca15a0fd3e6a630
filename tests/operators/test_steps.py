"""Ops of a model as they are found without weights: exactly those that a real model calls on a real device."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglk.backends.base import DeviceBackend
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import BoundOp
from sglk.config.compose import compose
from sglk.config.ops_schema import OpsConfig
from sglk.engine.batch import Batch
from sglk.engine.runner import ModelRunner
from sglk.errors import ConfigError
from sglk.models.loader import load_model
from sglk.operators import steps
from sglk.operators.cases import OpCase
from sglk.operators.shapes import shape_of
from sglk.operators.steps import ON_REQUEST, ModelOps, model_ops, with_lengths
from sglk.testing.tiny import write_tiny_model
from tests.quantization.checkpoints import Tensors, gptq, grid, write_pair


def composed(model: Path, *overrides: str) -> OpsConfig:
    sizes = ("ops.batch=3", "ops.context=40", "ops.prompt=70", "runtime.chunked_prefill_size=32")
    return compose("ops", [f"model={model}", *sizes, *overrides]).config


class RealCalls:
    """Observes the ops of a model that computes."""

    def __init__(self, backend: DeviceBackend) -> None:
        self.backend = backend
        self.counts: Counter[str] = Counter()

    def __call__(self, bound: BoundOp[..., Any], *arguments: Any) -> Any:
        self.counts[str(OpCase(bound.op.name, shape_of(bound.op.name, dict(bound.choice.traits), arguments)))] += 1
        return bound.function(*arguments)


def real_counts(config: OpsConfig, batches: list[Batch]) -> Counter[str]:
    backend = CpuBackend(fallback="allow")
    loaded = load_model(config.model, config.runtime, backend)
    # A step that is repeated calls no op.
    runner = ModelRunner(loaded.model, backend, replace(config.runtime, disable_cuda_graph=True))
    runner.allocate_kv(32, config.runtime.page_size)
    assert runner.pool is not None
    scales = [tensor for pair in runner.pool.scales if pair for tensor in (pair.keys_SK, pair.values_SK)]
    for tensor in (*runner.pool.keys, *runner.pool.values, *scales):
        # Past tokens that nobody computed.
        tensor.zero_()
    calls = RealCalls(backend)
    with backend.ops.observed(calls):
        for batch in batches:
            runner.run(batch)
    return calls.counts


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("LlamaForCausalLM", ()),
        ("Qwen2MoeForCausalLM", ("runtime.quantization=w8a8",)),
        ("Qwen3MoeForCausalLM", ("runtime.dtype=bf16",)),
        ("Qwen3ForCausalLM", ("runtime.quantization=w4a16", "runtime.kv_cache_dtype=int8")),
    ],
)
def test_the_ops_found_are_those_of_a_model_that_computes(
    architecture: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    config = composed(write_tiny_model(tmp_path / "model", architecture=architecture), *overrides)
    found = model_ops(config, CpuBackend(), "here")
    decode = {str(each.case): each.decode_calls for each in found.ops if each.decode_calls}
    prefill = {str(each.case): each.prefill_calls for each in found.ops if each.prefill_calls}
    assert decode == real_counts(config, [steps.decode_batch(config)])
    assert prefill == real_counts(config, list(steps.prefill_batches(config)))


def test_a_quantised_checkpoint_says_layer_by_layer_what_it_calls(tmp_path: Path) -> None:
    def shuffled(weight_OE: np.ndarray) -> tuple[Tensors, np.ndarray]:
        made = grid(weight_OE, 32, symmetric=False)
        made.shuffle(seed=weight_OE.shape[1])
        return gptq(made), made.weight_OE

    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}
    config = composed(write_pair(tmp_path, settings, shuffled)[0])
    found = model_ops(config, CpuBackend(), "here")
    decode = {str(each.case): each.decode_calls for each in found.ops if each.decode_calls}
    assert decode == real_counts(config, [steps.decode_batch(config)])
    products = [each.case.shape for each in found.ops if each.case.op == "linear_w4a16"]
    assert all(shape["reordered"] and not shape["symmetric"] for shape in products)


def test_every_shape_class_that_layers_select_is_found_at_a_shape(tmp_path: Path) -> None:
    config = composed(write_tiny_model(tmp_path / "model", architecture="Qwen2MoeForCausalLM"))
    found = model_ops(config, CpuBackend(), "here")
    assert _classes(found) == {(choice.op, frozenset(choice.traits)) for choice in found.classes}
    assert {each.case.op for each in found.ops if each.call is None} == set(ON_REQUEST)


def _classes(found: ModelOps) -> set[tuple[str, frozenset[tuple[str, Any]]]]:
    return {(each.case.op, frozenset(each.case.traits.items())) for each in found.ops}


def test_a_rank_has_its_part_of_the_heads(tmp_path: Path) -> None:
    config = composed(write_tiny_model(tmp_path / "model"), "runtime.tp_size=2")
    found = model_ops(config, CpuBackend(), "here")
    decode = next(each.case.shape for each in found.ops if each.case.op == "attention_decode")
    assert (decode["heads"], decode["kv_heads"]) == (2, 1)


def test_ranks_that_gather_have_all_inputs_of_some_outputs(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", architecture="MixtralForCausalLM")
    found = model_ops(composed(folder, "runtime.tp_size=2"), CpuBackend(), "here")
    products = [each.case.shape for each in found.ops if each.case.op == "linear"]
    shapes = {(shape["in_features"], shape["out_features"]) for shape in products}
    # Out of attention, and out of one expert of a width of 64: halves of the 64 outputs.
    assert shapes >= {(64, 32), (64, 64)}
    assert not any(each.case.op == "run_experts" for each in found.ops)
    summed = model_ops(
        composed(folder, "runtime.tp_size=2", "runtime.enable_deterministic_inference=false"), CpuBackend(), "here"
    )
    assert any(each.case.op == "run_experts" for each in summed.ops)


def test_a_model_without_files_is_known_by_its_numbers() -> None:
    config = compose("ops", ["model=qwen32b", "runtime.quantization=w8a8"]).config
    found = model_ops(config, CpuBackend(), "here")
    products = [each for each in found.ops if each.case.op == "linear_w8a8" and each.decode_calls]
    shapes = {(each.case.shape["in_features"], each.case.shape["out_features"]): each.decode_calls for each in products}
    # The last one is the output head, rounded like the layers here.
    assert shapes == {(5120, 7168): 64, (5120, 5120): 64, (5120, 55296): 64, (27648, 5120): 64, (5120, 152064): 1}


def test_lengths_that_nobody_gives_are_what_the_model_has_room_for(tmp_path: Path) -> None:
    model = f"model={write_tiny_model(tmp_path / 'model')}"
    for word, lengths in (("", (256, 256)), ("runtime.context_length=100", (100, 100)), ("ops.prompt=7", (256, 7))):
        found = with_lengths(compose("ops", [model, *word.split()]).config).ops
        assert (found.context, found.prompt) == lengths
    assert with_lengths(compose("ops", ["model=qwen32b"]).config).ops.context == 1024


def test_more_context_than_the_model_has_is_refused(tmp_path: Path) -> None:
    config = composed(write_tiny_model(tmp_path / "model"), "ops.context=4096")
    with pytest.raises(ConfigError, match=r"ops.context=4096 is beyond the context length .* at most 256"):
        model_ops(config, CpuBackend(), "here")
