"""How a checkpoint says that its weights are quantised: `quantization_config` in config.json. Needs no torch."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from sglk.backends.schemes import LinearScheme
from sglk.errors import ModelLoadError
from sglk.models.fields import Fields, read_json, read_json_if_present

METHODS = ("gptq", "awq", "compressed-tensors", "fp8", "w8a8_int8", "w8a8_fp8")
"""Values of `quant_method` that can be read."""

_COMPRESSED_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")

_BY_GROUP_INDEX = ("group", "dynamic", True)
"""compressed-tensors' values of `actorder` that come with a `weight_g_idx`."""

_GPTQ_KINDS = {4: "w4a16", 8: "w8a16"}
"""By bits."""

_GPTQ_SETTINGS = "quantize_config.json"
"""Where older GPTQ tools keep their settings."""


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    """The scheme that a checkpoint's linear layers share, and how their tensors are laid out."""

    method: str
    """`quant_method`."""
    scheme: LinearScheme
    zeros_less_one: bool = False
    """GPTQ's first layout stores every zero point less one."""
    packed: bool = False
    """compressed-tensors with values packed into int32."""
    block_rows: int = 1
    """Outputs that share a scale (blocks of fp8)."""
    reordered: bool = False
    """Whether every layer says which group each of its inputs belongs to."""
    ignored: tuple[str, ...] = ()
    """compressed-tensors' names of layers in full precision; those of many begin with `re:`."""

    def leaves_out(self, name: str) -> bool:
        """Return whether the linear layer of that name, such as `model.layers.0.mlp.up_proj`, is in full precision."""
        return any(
            re.match(each.removeprefix("re:"), name) is not None if each.startswith("re:") else each == name
            for each in self.ignored
        )


def read_quantization(folder: Path) -> CheckpointQuantization | None:
    """Return how the checkpoint in `folder` is quantised, None for full precision.

    Raises ModelLoadError, with what can be read, where the method or its settings are not among that.
    """
    config = read_json(folder / "config.json")
    values = config.values.get("quantization_config") or config.values.get("compression_config")
    if values is None:
        settings = read_json_if_present(folder / _GPTQ_SETTINGS)
        return _gptq(settings) if settings.values else None
    if not isinstance(values, dict):
        raise config.wrong("quantization_config", "an object")
    return parse_quantization(Fields(values, f"{config.origin}: quantization_config"))


def parse_quantization(settings: Fields) -> CheckpointQuantization:
    """Return what the contents of `quantization_config` mean."""
    method = settings.text("quant_method").replace("_", "-").lower()
    if method == "gptq":
        return _gptq(settings)
    if method == "awq":
        return _awq(settings)
    if method == "compressed-tensors":
        return _compressed_tensors(settings)
    if method == "fp8":
        return _fp8(settings)
    if method in ("w8a8-int8", "w8a8-fp8"):
        return CheckpointQuantization(method.replace("-", "_"), LinearScheme("fp8" if "fp8" in method else "w8a8"))
    raise settings.wrong("quant_method", f"one of {', '.join(METHODS)}")


def _gptq(settings: Fields) -> CheckpointQuantization:
    bits = settings.integer("bits")
    if bits not in _GPTQ_KINDS:
        raise settings.wrong("bits", "4 or 8")
    layout = settings.text("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise settings.wrong("checkpoint_format", "'gptq' or 'gptq_v2'")
    _refuse_overrides(settings)
    scheme = LinearScheme(_GPTQ_KINDS[bits], _group_size(settings), settings.flag("sym", True))
    reordered = settings.flag("desc_act", False)
    return CheckpointQuantization("gptq", scheme, zeros_less_one=layout == "gptq", reordered=reordered)


def _refuse_overrides(settings: Fields) -> None:
    """Refuse layers of another format; those that are left out (`-:`) are recognised by their tensors."""
    overrides = settings.values.get("dynamic") or {}
    if not isinstance(overrides, dict) or not all(isinstance(change, dict) for change in overrides.values()):
        raise settings.wrong("dynamic", "an object of objects")
    for pattern, change in overrides.items():
        for key in ("bits", "group_size", "sym"):
            if not pattern.startswith("-:") and change.get(key, settings.values.get(key)) != settings.values.get(key):
                raise ModelLoadError(
                    f"{settings.origin}: `dynamic` gives some layers another `{key}`; one for all works"
                )


def _awq(settings: Fields) -> CheckpointQuantization:
    _require(settings, "bits", 4)
    if settings.text("version", "gemm").lower() != "gemm":
        raise settings.wrong("version", "'gemm'")
    if not settings.flag("zero_point", True):
        raise settings.wrong("zero_point", "true")
    return CheckpointQuantization("awq", LinearScheme("w4a16", _group_size(settings), symmetric=False))


def _fp8(settings: Fields) -> CheckpointQuantization:
    if settings.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise settings.wrong("fmt", "'e4m3'")
    if not settings.has("weight_block_size"):
        return CheckpointQuantization("fp8", LinearScheme("fp8"))
    rows, columns = _pair(settings, "weight_block_size")
    return CheckpointQuantization("fp8", LinearScheme("fp8", columns), block_rows=rows)


def _compressed_tensors(settings: Fields) -> CheckpointQuantization:
    groups = settings.values.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise settings.wrong("config_groups", "an object of objects")
    layout, ignored = settings.text("format", "dense"), _ignored(settings)
    found = {
        _compressed_group(Fields(group, f"{settings.origin}: config_groups.{name}"), layout)
        for name, group in groups.items()
    }
    if len(found) != 1:
        raise ModelLoadError(f"{settings.origin}: {len(found)} different schemes in one model cannot be loaded")
    return replace(found.pop(), ignored=ignored)


def _ignored(settings: Fields) -> tuple[str, ...]:
    names = settings.values.get("ignore") or []
    wrong = settings.wrong("ignore", "a list of names, and of regular expressions after `re:`")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise wrong
    try:
        for name in names:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
    except re.error as error:
        raise wrong from error
    return tuple(names)


def _compressed_group(group: Fields, layout: str) -> CheckpointQuantization:
    layout = group.text("format", layout)
    if layout not in _COMPRESSED_FORMATS:
        raise group.wrong("format", f"one of {', '.join(_COMPRESSED_FORMATS)}")
    weights = Fields(group.values.get("weights") or {}, f"{group.origin}.weights")
    kind = _compressed_kind(group, weights)
    group_size, block_rows = _compressed_blocks(weights)
    symmetric = weights.flag("symmetric", True)
    if kind != "w4a16" and not symmetric:
        raise weights.wrong("symmetric", "true for 8-bit weights")
    scheme = LinearScheme(kind, group_size, symmetric)
    return CheckpointQuantization(
        "compressed-tensors",
        scheme,
        packed=layout == "pack-quantized",
        block_rows=block_rows,
        reordered=weights.values.get("actorder") in _BY_GROUP_INDEX,
    )


def _compressed_kind(group: Fields, weights: Fields) -> str:
    number, bits = weights.text("type", "int"), weights.integer("num_bits")
    rounded = group.has("input_activations")
    kinds = {
        ("int", 4, False): "w4a16",
        ("int", 8, False): "w8a16",
        ("int", 8, True): "w8a8",
        ("float", 8, False): "fp8",
        ("float", 8, True): "fp8",
    }
    if (number, bits, rounded) not in kinds:
        given = f"{bits}-bit {number} weights {'with' if rounded else 'without'} quantised activations"
        raise ModelLoadError(f"{group.origin}: {given} cannot be loaded; int 4, int 8 and float 8 weights can")
    return kinds[number, bits, rounded]


def _compressed_blocks(weights: Fields) -> tuple[int, int]:
    """Return inputs and outputs that share a scale."""
    strategy = weights.text("strategy", "tensor")
    if strategy in ("tensor", "channel"):
        return -1, 1
    if strategy == "group":
        return weights.integer("group_size"), 1
    if strategy == "block":
        rows, columns = _pair(weights, "block_structure")
        return columns, rows
    raise weights.wrong("strategy", "'tensor', 'channel', 'group' or 'block'")


def _pair(settings: Fields, key: str) -> tuple[int, int]:
    value = settings.values.get(key)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(size, int) and size > 0 for size in value):
        raise settings.wrong(key, "two positive integers")
    return value[0], value[1]


def _group_size(settings: Fields) -> int:
    value = settings.values.get("group_size", 128)
    return -1 if value == -1 else settings.integer("group_size", 128)


def _require(settings: Fields, key: str, value: int) -> None:
    if settings.integer(key) != value:
        raise settings.wrong(key, str(value))
