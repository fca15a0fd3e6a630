"""Quantised checkpoints read from their own layouts: equal to their full-precision twin, number by number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sglk.backends.cpu import CpuBackend
from sglk.backends.quantised import full_precision
from sglk.config.schema import RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.errors import ConfigError, ModelLoadError
from sglk.layers.quantised_linear import QuantisedWeight
from tests.quantization import checkpoints
from tests.quantization.answers import load, logits
from tests.quantization.checkpoints import Grid, Tensors, grid, write_pair

GPTQ = {"quant_method": "gptq", "bits": 4}
COMPRESSED = {"quant_method": "compressed-tensors"}


def compressed(layout: str, activations: bool = False, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"dynamic": True} if activations else None}
    return COMPRESSED | {"format": layout, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def few_bits(
    layout: Callable[[Grid], Tensors], size: int, symmetric: bool, shuffled: bool = False, bits: int = 4
) -> Callable[[np.ndarray], tuple[Tensors, np.ndarray]]:
    def quantise(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        made = grid(weight, size, symmetric, bits)
        if layout is checkpoints.packed:
            made.scales_OG = torch.from_numpy(made.scales_OG).bfloat16().float().numpy()
        if shuffled:
            # Another order for each width: q, k and v share theirs, and so do gate and up.
            made.shuffle(seed=weight.shape[1])
        return layout(made), made.weight_OE

    return quantise


@pytest.mark.parametrize("size", [32, 64, 128, -1])
@pytest.mark.parametrize(
    ("settings", "layout", "symmetric", "shuffled"),
    [
        (GPTQ | {"sym": True, "desc_act": False}, checkpoints.gptq, True, False),
        (GPTQ | {"sym": False, "desc_act": True}, checkpoints.gptq, False, True),
        (GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, checkpoints.gptq_v2, False, False),
        ({"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}, checkpoints.awq, False, False),
    ],
    ids=["gptq-sym", "gptq-desc_act", "gptq_v2", "awq"],
)
def test_gptq_and_awq_compute_what_their_numbers_say(
    tmp_path: Path,
    settings: dict[str, Any],
    layout: Callable[[Grid], Tensors],
    symmetric: bool,
    shuffled: bool,
    size: int,
) -> None:
    pair = write_pair(tmp_path, settings | {"group_size": size}, few_bits(layout, size, symmetric, shuffled))
    assert_equal_to_twin(*pair, "w4a16")


@pytest.mark.parametrize(("symmetric", "shuffled", "size"), [(True, False, -1), (False, False, 32), (False, True, 64)])
@pytest.mark.parametrize("layout", [checkpoints.gptq, checkpoints.gptq_v2])
def test_gptq_of_8_bits_computes_what_its_numbers_say(
    tmp_path: Path, layout: Callable[[Grid], Tensors], symmetric: bool, shuffled: bool, size: int
) -> None:
    settings = GPTQ | {"bits": 8, "sym": symmetric, "desc_act": shuffled, "group_size": size}
    settings["checkpoint_format"] = layout.__name__
    quantise = few_bits(layout, size, symmetric, shuffled, bits=8)
    pair = write_pair(tmp_path, settings, quantise, architecture="Qwen2ForCausalLM")
    assert_equal_to_twin(*pair, "w8a16")
    assert kinds(load(pair[0], quantization="gptq")) == {"w8a16"}
    runners = [ModelRunner(load(folder), CpuBackend(num_threads=1), RuntimeConfig()) for folder in pair]
    assert [runner.quantization for runner in runners] == ["w8a16", None]


@pytest.mark.parametrize(("symmetric", "shuffled"), [(True, False), (False, False), (False, True)])
def test_packed_compressed_tensors_compute_what_their_numbers_say(
    tmp_path: Path, symmetric: bool, shuffled: bool
) -> None:
    settings = compressed(
        "pack-quantized", num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=32
    )
    pair = write_pair(tmp_path, settings, few_bits(checkpoints.packed, 32, symmetric, shuffled))
    assert_equal_to_twin(*pair, "w4a16")


def eight_bit(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    scales = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 127).bfloat16().float()
    values = (torch.from_numpy(weight) / scales).round().clamp(-127, 127).to(torch.int8)
    return {"weight": values, "weight_scale": scales.bfloat16()}, (values * scales).numpy()


def packed_eight_bit(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    tensors, twin = eight_bit(weight)
    unsigned = (tensors["weight"].int() + 128).numpy().astype(np.uint8)
    words = torch.from_numpy(unsigned.view("<i4").copy())
    shape = torch.tensor(weight.shape)
    return {"weight_packed": words, "weight_scale": tensors["weight_scale"], "weight_shape": shape}, twin


def floats(block: tuple[int, int] | None, name: str) -> Callable[[np.ndarray], tuple[Tensors, np.ndarray]]:
    """Return a quantiser to e4m3 with one scale for the tensor (None), or for blocks of (outputs, inputs)."""

    def quantise(array: np.ndarray) -> tuple[Tensors, np.ndarray]:
        weight = torch.from_numpy(array)
        rows, columns = block or weight.shape
        scales = torch.stack(
            [torch.stack([part.abs().max() / 448 for part in band.split(columns, 1)]) for band in weight.split(rows, 0)]
        )
        spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: len(weight), : weight.shape[1]]
        values = (weight / spread).to(torch.float8_e4m3fn)
        stored = scales.reshape(()) if block is None else scales
        twin = (values.float() * spread).numpy()
        return {"weight": values, name: stored, "input_scale": torch.tensor(0.02)}, twin

    return quantise


@pytest.mark.parametrize(
    ("settings", "quantise", "kind"),
    [
        (compressed("pack-quantized", num_bits=8, type="int", strategy="channel"), packed_eight_bit, "w8a16"),
        (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), eight_bit, "w8a16"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, floats(None, "weight_scale"), "fp8"),
        (
            compressed("float-quantized", True, num_bits=8, type="float", strategy="channel"),
            floats((1, 10**6), "weight_scale"),
            "fp8",
        ),
        (
            {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 40]},
            floats((48, 40), "weight_scale_inv"),
            "fp8",
        ),
    ],
    ids=["int8-packed", "int8", "fp8-tensor", "fp8-channel", "fp8-block"],
)
def test_8_bit_weights_compute_what_their_numbers_say(
    tmp_path: Path,
    settings: dict[str, Any],
    quantise: Callable[[np.ndarray], tuple[Tensors, np.ndarray]],
    kind: str,
) -> None:
    assert_equal_to_twin(*write_pair(tmp_path, settings, quantise), kind)


@pytest.mark.parametrize(
    "settings",
    [compressed("int-quantized", True, num_bits=8, type="int", strategy="channel"), {"quant_method": "w8a8_int8"}],
)
def test_w8a8_checkpoints_differ_from_their_twin_by_rounded_activations_alone(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    quantised, twin = write_pair(tmp_path, settings, eight_bit)
    model, expected = load(quantised), logits(load(twin))
    assert kinds(model) == {"w8a8"}
    assert weights(model) == pytest.approx(weights(load(twin)))
    assert 0 < float((logits(model) - expected).norm() / expected.norm()) < 0.05


def test_projections_in_different_orders_run_apart(tmp_path: Path) -> None:
    seeds = iter(range(1000))

    def quantise(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        made = grid(weight, 32, symmetric=False)
        made.shuffle(seed=next(seeds))
        return checkpoints.gptq(made), made.weight_OE

    quantised, twin = write_pair(tmp_path, GPTQ | {"group_size": 32, "sym": False, "desc_act": True}, quantise)
    model = load(quantised)
    assert len(model.layers[0].attention.qkv.products) == 3
    assert_equal_to_twin(quantised, twin, "w4a16")


def test_layers_that_the_quantiser_left_out_stay_in_full_precision(tmp_path: Path) -> None:
    quantise = few_bits(checkpoints.awq, 32, symmetric=False)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["v_proj", "layers.1"]}
    quantised, twin = write_pair(tmp_path, settings, quantise, skip="v_proj")
    model = load(quantised)
    assert [type(product).__name__ for product in model.layers[0].attention.qkv.products] == [
        "QuantisedProduct",
        "Product",
    ]
    assert_equal_to_twin(quantised, twin, "w4a16")


def test_biases_are_added_once(tmp_path: Path) -> None:
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32}
    pair = write_pair(
        tmp_path, settings, few_bits(checkpoints.awq, 32, symmetric=False), architecture="Qwen2ForCausalLM"
    )
    assert_equal_to_twin(*pair, "w4a16")


def test_a_quantised_head_is_read_in_full_precision(tmp_path: Path) -> None:
    quantised, twin = write_pair(tmp_path, GPTQ | {"group_size": 32}, few_bits(checkpoints.gptq, 32, symmetric=True))
    head = load_file(quantised / "model.safetensors")["lm_head.weight"]
    tensors, weight = few_bits(checkpoints.gptq, 32, symmetric=True)(head.numpy())
    replace_tensors(quantised, {f"lm_head.{part}": tensor for part, tensor in tensors.items()}, ["lm_head.weight"])
    replace_tensors(twin, {"lm_head.weight": torch.from_numpy(weight)})
    assert_equal_to_twin(quantised, twin, "w4a16")


@pytest.mark.parametrize("requested", [None, "w4a16", "gptq"])
def test_the_given_scheme_may_agree_with_the_checkpoint(tmp_path: Path, requested: str | None) -> None:
    quantised, _ = write_pair(tmp_path, GPTQ | {"group_size": 32}, few_bits(checkpoints.gptq, 32, symmetric=True))
    assert kinds(load(quantised, quantization=requested)) == {"w4a16"}


@pytest.mark.parametrize("requested", ["w8a8", "awq", "fp8", "compressed-tensors"])
def test_a_scheme_that_contradicts_the_checkpoint_is_refused(tmp_path: Path, requested: str) -> None:
    quantised, _ = write_pair(tmp_path, GPTQ | {"group_size": 32}, few_bits(checkpoints.gptq, 32, symmetric=True))
    with pytest.raises(ConfigError, match=rf"quantization={requested} contradicts .* w4a16 \(gptq\); set it to null"):
        load(quantised, quantization=requested)


def test_a_layout_asked_of_a_full_precision_checkpoint_is_refused(tmp_path: Path) -> None:
    _, twin = write_pair(tmp_path, GPTQ, few_bits(checkpoints.gptq, 32, symmetric=True))
    with pytest.raises(
        ConfigError, match=r"quantization=gptq asks for .* quantised already.*choose null, or one of w8a8"
    ):
        load(twin, quantization="gptq")


def test_the_wrong_zero_point_convention_is_noticed(tmp_path: Path) -> None:
    settings = GPTQ | {"group_size": 32, "checkpoint_format": "gptq_v2"}
    quantised, _ = write_pair(tmp_path, settings, few_bits(checkpoints.gptq, 32, symmetric=True))
    with pytest.raises(ModelLoadError, match=r"zero point 7 where `sym` promises 8; `checkpoint_format`"):
        load(quantised)


def test_a_tensor_that_is_missing_or_does_not_fit_is_named(tmp_path: Path) -> None:
    quantised, _ = write_pair(tmp_path, GPTQ | {"group_size": 32}, few_bits(checkpoints.gptq, 32, symmetric=True))
    name = "model.layers.1.mlp.down_proj.scales"
    scales = load_file(quantised / "model.safetensors")[name]
    replace_tensors(quantised, {name: scales[:2]})
    with pytest.raises(ModelLoadError, match=r"'model\.layers\.1\.mlp\.down_proj\.scales' has shape \[2, 64\]"):
        load(quantised)
    replace_tensors(quantised, {}, [name])
    with pytest.raises(ModelLoadError, match=r"'model\.layers\.1\.mlp\.down_proj\.scales' is missing"):
        load(quantised)


LAYER = "model.layers.1.mlp.down_proj"

PACKED = compressed("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)


@pytest.mark.parametrize(
    ("settings", "quantise", "part", "spoil", "message"),
    [
        (GPTQ, few_bits(checkpoints.gptq, 128, True), "qweight", torch.flatten, "int32 of shape .* an int32 matrix"),
        (GPTQ, few_bits(checkpoints.gptq, 128, True), "qweight", lambda t: t[:0], "an int32 matrix"),
        (GPTQ, few_bits(checkpoints.gptq, 128, True), "qweight", torch.Tensor.long, "int64 .* an int32 matrix"),
        (GPTQ, few_bits(checkpoints.gptq, 128, True), "scales", lambda t: t * torch.nan, "not finite"),
        (GPTQ | {"desc_act": True}, few_bits(checkpoints.gptq, 128, True), "g_idx", None, "is missing"),
        (PACKED, few_bits(checkpoints.packed, 32, False), "weight_packed", lambda t: t[:, 1:], "4-bit values for"),
        (PACKED, few_bits(checkpoints.packed, 32, False), "weight_shape", lambda t: t * 2**40, "4-bit values for"),
        (PACKED, few_bits(checkpoints.packed, 32, False), "weight_shape", lambda t: -t, "4-bit values for"),
        (PACKED, few_bits(checkpoints.packed, 32, False), "weight_zero_point", lambda t: t[1:], r"expected \[8, 4\]"),
        (
            compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
            eight_bit,
            "weight_scale",
            None,
            "holds int8 without the scales",
        ),
        ({"quant_method": "fp8"}, floats(None, "weight_scale"), "weight_scale", None, "holds float8_e4m3fn without"),
        ({"quant_method": "fp8"}, floats(None, "weight_scale"), "weight", torch.flatten, "a matrix of float8_e4m3fn"),
    ],
)
def test_what_does_not_fit_its_layout_is_refused_in_one_line(
    tmp_path: Path,
    settings: dict[str, Any],
    quantise: Callable[[np.ndarray], tuple[Tensors, np.ndarray]],
    part: str,
    spoil: Callable[[torch.Tensor], torch.Tensor] | None,
    message: str,
) -> None:
    quantised, _ = write_pair(tmp_path, settings, quantise)
    name = f"{LAYER}.{part}"
    stored = load_file(quantised / "model.safetensors")[name]
    replace_tensors(quantised, {} if spoil is None else {name: spoil(stored)}, [name] if spoil is None else None)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(quantised)
    assert f"'{LAYER}.weight" in str(caught.value) or f"'{name}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_lost_its_configuration_is_not_taken_for_full_precision(tmp_path: Path) -> None:
    quantised, twin = write_pair(tmp_path, {"quant_method": "w8a8_int8"}, eight_bit)
    (quantised / "config.json").write_bytes((twin / "config.json").read_bytes())
    with pytest.raises(ModelLoadError, match="holds int8 without the scales that belong to it"):
        load(quantised)


def assert_equal_to_twin(quantised: Path, twin: Path, kind: str) -> None:
    """Compare every number, then what comes out."""
    model, expected = load(quantised), load(twin)
    assert kinds(model) == {kind}
    assert weights(model) == weights(expected)
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    assert model.weights_bytes < 0.75 * expected.weights_bytes


def kinds(model: Any) -> set[str]:
    return {weight.scheme.kind for weight in model.context.weights if isinstance(weight, QuantisedWeight)}


def weights(model: Any) -> dict[str, float]:
    """Return a fingerprint of every tensor, whichever products they are part of."""
    prints = {}
    for weight in model.context.weights:
        whole = full_precision(weight.matrix if isinstance(weight, QuantisedWeight) else weight.tensor)
        pieces = whole.split([shape[0] for _, shape in weight.parts])
        for (name, _), piece in zip(weight.parts, pieces, strict=True):
            places = torch.arange(piece.numel()).view(piece.shape) % 1009
            prints[name] = float((piece.double() * places).sum())
    return prints


def replace_tensors(folder: Path, new: Tensors, gone: list[str] | None = None) -> None:
    tensors = load_file(folder / "model.safetensors") | new
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in (gone or [])}
    save_file(kept, folder / "model.safetensors")
