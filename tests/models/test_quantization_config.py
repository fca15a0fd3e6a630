"""What `quantization_config` of config.json says, and what of it can be read."""

from pathlib import Path
from typing import Any

import pytest

from sglk.backends.schemes import LinearScheme
from sglk.errors import ModelLoadError
from sglk.models.fields import Fields
from sglk.models.quantization_config import parse_quantization, read_quantization
from sglk.testing.tiny import write_json, write_tiny_model

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False}


def compressed(weights: dict[str, Any], activations: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}} | more


@pytest.mark.parametrize(
    ("settings", "scheme"),
    [
        (GPTQ, LinearScheme("w4a16", 128)),
        (GPTQ | {"sym": False, "group_size": -1}, LinearScheme("w4a16", -1, symmetric=False)),
        (GPTQ | {"bits": 8, "dynamic": {"-:.*up_proj": {}}}, LinearScheme("w8a16", 128)),
        ({"quant_method": "awq", "bits": 4}, LinearScheme("w4a16", 128, symmetric=False)),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, LinearScheme("fp8")),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, LinearScheme("fp8", 128)),
        ({"quant_method": "w8a8_int8"}, LinearScheme("w8a8")),
        (compressed(INT4, format="pack-quantized"), LinearScheme("w4a16", 64, symmetric=False)),
        (
            compressed(
                {"type": "int", "num_bits": 8, "strategy": "channel"}, {"dynamic": True}, format="int-quantized"
            ),
            LinearScheme("w8a8"),
        ),
        (
            compressed({"type": "float", "num_bits": 8, "strategy": "tensor"}, {}, format="float-quantized"),
            LinearScheme("fp8"),
        ),
    ],
)
def test_a_scheme_is_recognised(settings: dict[str, Any], scheme: LinearScheme) -> None:
    assert parse_quantization(Fields(settings, "config.json")).scheme == scheme


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, r"config\.json: `quant_method` must be one of gptq, awq, .*bitsandbytes"),
        ({}, "`quant_method` is missing"),
        (GPTQ | {"bits": 3}, "`bits` must be 4 or 8, not 3"),
        (GPTQ | {"dynamic": {"+:.*up_proj": {"bits": 8}}}, "`dynamic` gives some layers another `bits`"),
        (GPTQ | {"dynamic": 3}, "`dynamic` must be an object of objects"),
        (GPTQ | {"group_size": 0}, "`group_size` must be a positive integer"),
        (GPTQ | {"checkpoint_format": "marlin"}, "`checkpoint_format` must be 'gptq' or 'gptq_v2'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "`version` must be 'gemm'"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "`zero_point` must be true"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "`fmt` must be 'e4m3'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "`weight_block_size` must be two positive integers"),
        (compressed(INT4, format="marlin-24"), r"config_groups\.group_0: `format` must be one of pack-quantized"),
        (compressed(INT4, {}, format="pack-quantized") | {"config_groups": 3}, "`config_groups` must be an object"),
        (
            compressed(INT4 | {"num_bits": 2}, format="pack-quantized"),
            "2-bit int weights without quantised activations",
        ),
        (compressed(INT4, {"dynamic": True}, format="int-quantized"), "4-bit int weights with quantised activations"),
        (
            compressed({"type": "int", "num_bits": 8, "symmetric": False}, format="int-quantized"),
            r"weights: `symmetric` must be true for 8-bit weights",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_what_can(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse_quantization(Fields(settings, "config.json"))


def test_older_gptq_tools_have_a_file_of_their_own(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    assert read_quantization(folder) is None
    write_json(folder / "quantize_config.json", {"bits": 4, "group_size": 32, "sym": False})
    found = read_quantization(folder)
    assert found is not None
    assert (found.method, found.scheme, found.zeros_less_one) == ("gptq", LinearScheme("w4a16", 32, False), True)


def test_two_schemes_in_one_model_are_refused() -> None:
    settings = compressed(INT4, format="pack-quantized")
    settings["config_groups"]["group_1"] = {"weights": INT4 | {"group_size": 32}}
    with pytest.raises(ModelLoadError, match="2 different schemes in one model"):
        parse_quantization(Fields(settings, "config.json"))
