"""Tiny checkpoints in the layouts that quantisers write, each with a full-precision twin of the same numbers.

The words are put together bit by bit, as the tools do it (AutoGPTQ's and AutoAWQ's `pack`, compressed-tensors'
`pack_to_int32`), not with the product's own functions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from sglk.testing.tiny import tiny_config, write_json, write_tokenizer
from sglk.testing.tiny_weights import tiny_weights

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Grid:
    """A matrix of small integers with scales and zero points, group by group along the inputs."""

    values_OE: np.ndarray
    scales_OG: np.ndarray
    zeros_OG: np.ndarray
    group_size: int
    bits: int = 4
    groups_E: np.ndarray = field(init=False)
    """Group of each input."""

    def __post_init__(self) -> None:
        self.groups_E = np.arange(self.values_OE.shape[1]) // self.group_size

    def shuffle(self, seed: int) -> None:
        """Let the columns belong to inputs in a random order, as with desc_act."""
        order = np.random.default_rng(seed).permutation(len(self.groups_E))
        self.values_OE, self.groups_E = self.values_OE[:, order], self.groups_E[order]

    @property
    def weight_OE(self) -> np.ndarray:
        zeros_OE, scales_OE = self.zeros_OG[:, self.groups_E], self.scales_OG[:, self.groups_E]
        return ((self.values_OE - zeros_OE) * scales_OE).astype(np.float32)


def grid(weight_OE: np.ndarray, group_size: int, symmetric: bool, bits: int = 4) -> Grid:
    """Round to few bits."""
    outputs, inputs = weight_OE.shape
    size = inputs if group_size == -1 else min(group_size, inputs)
    groups = weight_OE.reshape(outputs, -1, size)
    largest = 2**bits - 1
    if symmetric:
        scales = np.abs(groups).max(-1) / (largest // 2)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        scales = (groups.max(-1) - groups.min(-1)) / (largest - 1)
        # GPTQ's first layout cannot hold a zero point of 0.
        zeros = np.clip(np.round(-groups.min(-1) / scales), 1, largest).astype(int)
    scales = scales.astype(np.float16).astype(np.float32)
    values = np.clip(np.round(groups / scales[..., None]) + zeros[..., None], 0, largest).astype(int)
    return Grid(values.reshape(outputs, inputs), scales, zeros, size, bits)


def words(values: np.ndarray, order: tuple[int, ...] = tuple(range(8)), bits: int = 4) -> torch.Tensor:
    """Put neighbours along the last axis into one int32, that at `order[0]` in the lowest bits."""
    each = 32 // bits
    out = np.zeros((*values.shape[:-1], values.shape[-1] // each), np.uint32)
    for word in range(out.shape[-1]):
        for place, neighbour in enumerate(order[:each]):
            out[..., word] |= (values[..., each * word + neighbour].astype(np.uint32) & (2**bits - 1)) << np.uint32(
                bits * place
            )
    return torch.from_numpy(out.astype(np.int32))


def gptq(g: Grid, less: int = 1) -> Tensors:
    """AutoGPTQ's layout; `less` is taken off every zero point."""
    return {
        "qweight": words(g.values_OE, bits=g.bits).t().contiguous(),
        "qzeros": words((g.zeros_OG - less).T, bits=g.bits),
        "scales": torch.from_numpy(g.scales_OG.T.copy()).half(),
        "g_idx": torch.from_numpy(g.groups_E.astype(np.int32)),
        # Older tools store a bias of zeros whether the layer has one or not.
        "bias": torch.zeros(len(g.values_OE)).half(),
    }


def gptq_v2(g: Grid) -> Tensors:
    return gptq(g, less=0)


def awq(g: Grid) -> Tensors:
    """AutoAWQ's gemm layout."""
    return {
        "qweight": words(g.values_OE.T, AWQ_ORDER),
        "qzeros": words(g.zeros_OG.T, AWQ_ORDER),
        "scales": torch.from_numpy(g.scales_OG.T.copy()).half(),
    }


def packed(g: Grid) -> Tensors:
    """compressed-tensors' pack-quantized layout."""
    tensors = {
        "weight_packed": words(g.values_OE),
        "weight_scale": torch.from_numpy(g.scales_OG).bfloat16().float(),
        "weight_shape": torch.tensor(g.values_OE.shape),
    }
    if (g.zeros_OG != 8).any():
        tensors["weight_zero_point"] = words(g.zeros_OG.T).t().contiguous()
    if (np.diff(g.groups_E) < 0).any():
        tensors["weight_g_idx"] = torch.from_numpy(g.groups_E.astype(np.int32))
    return tensors


def write_pair(
    folder: Path,
    quantization_config: dict[str, Any],
    quantise: Callable[[np.ndarray], tuple[Tensors, np.ndarray]],
    skip: str = "lm_head",
    **overrides: Any,
) -> tuple[Path, Path]:
    """Write a quantised tiny model and its twin; `quantise` gives a layer's tensors and what they stand for."""
    config = tiny_config(**overrides)
    quantised: Tensors = {}
    twin: Tensors = {}
    for name, array in tiny_weights(config).items():
        layer = name.removesuffix(".weight")
        if layer.endswith("_proj") and skip not in layer:
            tensors, weight = quantise(array)
            quantised |= {f"{layer}.{part}": tensor for part, tensor in tensors.items()}
            twin[name] = torch.from_numpy(weight)
        else:
            quantised[name] = twin[name] = torch.from_numpy(array)
    paths = folder / "quantised", folder / "twin"
    for path, tensors in zip(paths, (quantised, twin), strict=True):
        path.mkdir()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
        write_tokenizer(path)
    write_json(paths[0] / "config.json", config | {"quantization_config": quantization_config})
    write_json(paths[1] / "config.json", config)
    return paths
