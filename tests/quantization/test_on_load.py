"""Full-precision weights that are rounded when they are loaded."""

import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import Denial, OpRegistry, Packing
from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.backends.quantised_linear import linear_w8a8
from sglk.backends.schemes import ON_LOAD, Quantization
from sglk.errors import ConfigError
from sglk.layers import quantised_linear
from sglk.layers.linear import Linear
from sglk.layers.quantised_linear import QuantisedProduct, QuantisedWeight
from sglk.layers.weights import DeclaredWeight, LayerContext
from sglk.models.causal_lm import EMBEDDING, HEAD, CausalLM
from sglk.models.dummy_weights import DummyWeights
from sglk.models.llama import LlamaForCausalLM
from sglk.models.registry import model_class
from sglk.testing.tiny import tiny_config, write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf
from tests.models.greedy import spec_of
from tests.quantization.answers import load, logits

WIDTHS = {"hidden_size": 256, "intermediate_size": 512}

BOUNDS = {"w8a8": 0.03, "w8a16": 0.02, "fp8": 0.07, "w4a16": 0.2}
"""Largest relative error of the logits of a tiny random model; measured 0.019, 0.011, 0.045 and 0.136."""


@pytest.mark.parametrize("scheme", BOUNDS)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_logits_stay_close(tmp_path: Path, architecture: str, scheme: str) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, **WIDTHS)
    expected, rounded = logits(load(folder)), logits(load(folder, quantization=scheme))
    error = float((rounded - expected).norm() / expected.norm())
    assert 1e-4 < error < BOUNDS[scheme]


@pytest.mark.parametrize(("name", "scheme"), [("w8a8_int8", "w8a8"), ("w8a8_fp8", "fp8")])
def test_upstream_names_mean_the_same(tmp_path: Path, name: str, scheme: str) -> None:
    folder = write_tiny_model(tmp_path)
    assert torch.equal(logits(load(folder, quantization=name)), logits(load(folder, quantization=scheme)))


def test_gguf_and_dummy_weights_are_rounded_too(tmp_path: Path) -> None:
    file, folder = write_tiny_gguf(tmp_path / "tiny.gguf"), write_tiny_model(tmp_path / "folder")
    assert torch.equal(logits(load(file, quantization="w8a16")), logits(load(folder, quantization="w8a16")))
    dummy = load(folder, quantization="w4a16", load_format="dummy")
    assert dummy.weights_bytes < load(folder).weights_bytes
    assert logits(dummy).isfinite().all()


@pytest.mark.parametrize(("scheme", "bits"), [("w8a8", 8), ("w8a16", 8), ("fp8", 8), ("w4a16", 4)])
def test_memory_is_what_the_bits_say(tmp_path: Path, scheme: str, bits: int) -> None:
    folder = write_tiny_model(tmp_path, **WIDTHS)
    model, plain = load(folder, quantization=scheme), load(folder)
    quantised = [weight for weight in model.context.weights if isinstance(weight, QuantisedWeight)]
    numbers = sum(shape[0] * shape[1] for weight in quantised for _, shape in weight.parts)
    # One fp32 scale per output; fp16 scale and zero point, or fp32 scale, per 32 inputs.
    overhead = 1 if scheme in ("w4a16", "w8a8") else 32 / 256
    assert sum(weight.num_bytes(torch.float32) for weight in quantised) <= numbers * (bits + overhead) / 8
    assert plain.weights_bytes - model.weights_bytes >= numbers * (32 - bits - overhead) / 8

    spec = model.spec
    unloaded = model_class(spec.architecture)(spec, model.context.backend, torch.float32)
    assert unloaded.weights_bytes == model.weights_bytes


class OneAtATime:
    """Weights that notice when a tensor is asked for while an earlier one is still alive."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.alive: weakref.ReferenceType[torch.Tensor] = weakref.ref(torch.zeros(0))
        self.read = 0

    def names(self) -> Iterable[str]:
        return self.shapes.keys()

    def get(self, name: str) -> torch.Tensor:
        assert self.alive() is None, f"two tensors at once when {name} is read"
        tensor = torch.randn(self.shapes[name])
        self.alive = weakref.ref(tensor)
        self.read += 1
        return tensor


@pytest.mark.parametrize("scheme", [None, "w8a8", "w4a16"])
def test_one_tensor_at_a_time_is_in_full_precision(scheme: str | None) -> None:
    model = tiny(scheme, tiny_config())
    source = OneAtATime(model.weight_shapes())
    model.load_weights(source)
    assert source.read == len(source.shapes) > 20


@pytest.mark.parametrize("scheme", ["w8a8", "w4a16", "fp8"])
def test_rows_are_rounded_alike_however_many_together(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def matrices() -> list[QuantisedMatrix]:
        model = tiny(scheme, tiny_config())
        model.load_weights(DummyWeights(model.weight_shapes(), seed=0))
        return [weight.matrix for weight in model.context.weights if isinstance(weight, QuantisedWeight)]

    whole = matrices()
    assert len(whole) > 4
    monkeypatch.setattr(quantised_linear, "TOGETHER", 200)

    for one, other in zip(whole, matrices(), strict=True):
        assert torch.equal(full_precision(one), full_precision(other))


def test_head_embedding_norms_and_routers_stay_in_full_precision() -> None:
    model = tiny("w8a8", tiny_config("Qwen2MoeForCausalLM"))
    rounded = {name for w in model.context.weights if isinstance(w, QuantisedWeight) for name, _ in w.parts}
    assert {name.split(".")[-2] for name in rounded} == {
        f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")
    }
    assert "model.layers.0.mlp.experts.0.down_proj.weight" in rounded
    assert "model.layers.0.mlp.shared_expert.up_proj.weight" in rounded
    others = model.weight_shapes().keys() - rounded
    assert {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.shared_expert_gate.weight"} < others


@pytest.mark.parametrize("tied", [False, True])
def test_the_processor_rounds_the_head_to_w8a8_too_and_looks_embeddings_up_as_they_are(
    tmp_path: Path, tied: bool
) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=tied, **WIDTHS)
    plain, rounded = load(folder), load(folder, quantization="w8a8")
    (head,) = (
        w for w in rounded.context.weights if isinstance(w, QuantisedWeight) and w.parts[0][0] in (HEAD, EMBEDDING)
    )
    assert head.matrix.group_size == rounded.context.backend.capabilities.int8_group_size
    ids = torch.arange(plain.spec.vocab_size)
    assert isinstance(rounded, LlamaForCausalLM)
    assert isinstance(plain, LlamaForCausalLM)
    assert torch.equal(rounded.embedding(ids), plain.embedding(ids))
    assert head.parts[0][0] == (EMBEDDING if tied else HEAD)
    x_BE = torch.randn(3, plain.spec.hidden_size)
    expected = plain.head(x_BE)
    assert 1e-4 < (rounded.head(x_BE) - expected).norm() / expected.norm() < BOUNDS["w8a8"]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_numbers_of_few_bits_are_rounded_as_what_they_stand_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quantization=kind, hidden_size=64, tie_word_embeddings=True)
    by_rows = logits(load(file, quantization="w8a8"))
    monkeypatch.setattr(quantised_linear, "FewBitsSource", int)
    assert torch.equal(logits(load(file, quantization="w8a8")), by_rows)


def offer_transposed(ops: OpRegistry) -> None:
    """Offer an implementation that wants its weight transposed."""

    def run(x: torch.Tensor, weight: "Transposed", bias: torch.Tensor | None) -> torch.Tensor:
        return linear_w8a8.reference(x, weight.matrix(), bias)

    ops.register(linear_w8a8, "fast", run, packing=Packing(Transposed, Transposed.matrix))


class Transposed:
    def __init__(self, matrix: QuantisedMatrix) -> None:
        self.values_EO, self.scales_OG = matrix.values.t().contiguous(), matrix.scales_OG
        self.group_size = matrix.group_size
        self.nbytes = matrix.nbytes

    def matrix(self) -> QuantisedMatrix:
        return QuantisedMatrix(self.values_EO.t().contiguous(), self.scales_OG, self.group_size)


def test_a_layout_of_an_implementations_own_goes_back_when_it_is_quarantined() -> None:
    backend = CpuBackend(num_threads=1, deny=[Denial("linear_w8a8", "cpu_kernels", "it has a layout of its own")])
    offer_transposed(backend.ops)
    weights: list[DeclaredWeight] = []
    context = LayerContext(backend, torch.float32, weights, Quantization(default=ON_LOAD["w8a8"]))
    linear = Linear(context, {"a": 48, "b": 16}, 64)
    source = OneAtATime({"a.weight": (48, 64), "b.weight": (16, 64)})
    for weight in weights:
        weight.load(source, backend, torch.float32)
    (product,) = linear.products
    assert isinstance(product, QuantisedProduct)
    assert isinstance(product.weight.packed, Transposed)
    x = torch.randn(3, 64)
    before, matrix = linear(x), product.weight.matrix

    assert backend.ops.quarantine(linear_w8a8, "fast", "wrong numbers") == 1
    torch.testing.assert_close(linear(x), before, rtol=1e-5, atol=1e-5)
    assert isinstance(product.weight.packed, QuantisedMatrix)
    assert torch.equal(full_precision(product.weight.packed), full_precision(matrix))


def tiny(scheme: str | None, config: dict[str, Any]) -> CausalLM:
    """Return a model without weights."""
    quantization = Quantization(default=ON_LOAD[scheme] if scheme else None)
    spec = replace(spec_of(config), quantization=quantization)
    return model_class(spec.architecture)(spec, CpuBackend(num_threads=1), torch.float32)


def test_four_bits_need_pairs_of_inputs(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, intermediate_size=63)
    with pytest.raises(
        ConfigError, match=r"w4a16 keeps two inputs in a byte, and 'model\.layers\.0\.mlp\.down_proj\.w"
    ):
        load(folder, quantization="w4a16")
