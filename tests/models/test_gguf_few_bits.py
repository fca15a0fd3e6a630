"""Blocks of GGUF files kept in few bits: the same numbers as the `gguf` library restores, and the same products."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from sglk.backends import reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.cpu_kernels.panels import PanelMatrix
from sglk.backends.few_bits import FewBits, restored
from sglk.backends.kept_kinds import KEPT_BITS
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.models.gguf_few_bits import few_bits_of
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_spec import read_gguf_spec
from sglk.models.gguf_weights import GgufWeights
from sglk.models.loader import load_model
from sglk.testing.tiny_gguf import write_tiny_gguf

OUTPUTS, INPUTS = 70, 512
HIGH_BYTES = {"Q4_0": (1,), "Q4_1": (1, 3), "Q8_0": (1,), "Q4_K": (1, 3), "Q6_K": (209,)}
"""Where the high bytes of a block's fp16 scales are."""


def random_blocks(kind: str) -> np.ndarray:
    """Return a matrix of random bytes whose scales are finite."""
    inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = np.random.default_rng(0).integers(0, 256, (OUTPUTS, INPUTS // inputs * size), np.uint8)
    for high in HIGH_BYTES[kind]:
        raw.reshape(-1, size)[:, high] &= 0xB3
    return raw


def read(kind: str) -> tuple[FewBits, torch.Tensor]:
    """Return the matrix in few bits, and in fp32 as the library has it."""
    raw, type_ = random_blocks(kind), GGMLQuantizationType[kind]
    few = few_bits_of(raw, type_)
    assert few is not None
    return few, torch.from_numpy(dequantize(raw, type_))


@pytest.mark.parametrize("kind", KEPT_BITS)
def test_no_number_changes(kind: str) -> None:
    few, plain_OE = read(kind)
    assert torch.equal(restored(few), plain_OE)
    assert torch.equal(restored(few.rows(slice(3, 40))), plain_OE[3:40])
    assert torch.equal(restored(few.columns(128, 384)), plain_OE[:, 128:384])
    parts = (few.values, few.scales_OG, few.offsets_OG)
    assert sum(part.nbytes for part in parts if part is not None) * 8 == plain_OE.numel() * KEPT_BITS[kind]


@pytest.mark.skipif(isinstance(kernels(), str), reason="the kernels cannot be built here")
@pytest.mark.parametrize("kind", KEPT_BITS)
def test_no_bit_of_a_product_changes(kind: str) -> None:
    few, plain_OE = read(kind)
    linear = CpuBackend(num_threads=1).ops.select(
        reference.linear, dtype="fp32", in_features=INPUTS, out_features=OUTPUTS
    )
    assert linear.packing is not None
    assert linear.packing.pack_few_bits is not None
    kept = linear.packing.pack_few_bits(few)
    assert torch.equal(linear.packing.unpack(kept), plain_OE)
    filled_OE = torch.cat((plain_OE, torch.zeros(58, INPUTS)))
    panels: Any = PanelMatrix(filled_OE.view(8, 16, INPUTS).transpose(1, 2).contiguous(), (OUTPUTS, INPUTS))
    x_TE = torch.randn(40, INPUTS, generator=torch.Generator().manual_seed(1))
    for count in (1, 3, 8, 20, 40):
        assert torch.equal(linear(x_TE[:count], kept, None), linear(x_TE[:count], panels, None)), count


def test_a_scale_without_an_end_is_left_to_the_library() -> None:
    raw = random_blocks("Q8_0")
    raw.reshape(-1, 34)[5, :2] = (0, 0x7C)
    assert few_bits_of(raw, GGMLQuantizationType.Q8_0) is None


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_a_file_gives_the_same_numbers_both_ways(kind: str, tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "tiny.gguf", quantization=kind))
    weights = GgufWeights(file, read_gguf_spec(file))
    kept = {name: few for name in weights.names() if (few := weights.few_bits(name)) is not None}
    assert {name for name in weights.names() if weights.get(name).dim() == 2} == set(kept)
    for name, few in kept.items():
        assert torch.equal(restored(few), weights.get(name)), name


@pytest.mark.skipif(isinstance(kernels(), str), reason="the kernels cannot be built here")
def test_a_model_takes_the_room_of_its_file(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", quantization="Q4_0")
    sizes = {}
    for dtype in ("fp32", "bf16"):
        backend = CpuBackend(num_threads=1)
        sizes[dtype] = load_model(ModelConfig(name="tiny", path=str(path)), RuntimeConfig(dtype=dtype), backend)
    kept, rounded = (sizes[dtype].model.weights_bytes for dtype in ("fp32", "bf16"))
    assert kept < 0.5 * rounded
