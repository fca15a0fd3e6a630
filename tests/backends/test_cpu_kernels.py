"""The own kernels of the cpu backend: no token's result depends on its neighbours, and packing loses nothing."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch

from sglk.backends import moe_ops, quantised_linear, reference
from sglk.backends.constraints import Trait
from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.int8 import Int8Kernel
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.cpu_kernels.panels import EXACT, QUANTISED, PanelMatrix, in_panels, pack_exactly, unpack_exactly
from sglk.backends.cpu_kernels.product import ProductKernel
from sglk.backends.dtypes import torch_dtype
from sglk.backends.ops import BoundOp, Op
from sglk.backends.quantise import quantise_fp8, quantise_int4, quantise_int8
from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.backends.quantised_moe import run_quantised_experts
from tests.backends.own_kernels import built, chosen, randn

pytestmark = built

TOKENS = 40
SCHEMES = ("fp32", "fp16", "bf16", "w8a8", "w8a16", "w8a16 with zeros", "w4a16", "fp8")
FLOATS = ("fp32", "fp16", "bf16")


def product(scheme: str, inputs: int, outputs: int, threads: int = 2) -> tuple[BoundOp[..., Any], Any, Any]:
    """Return the op of a scheme, a weight of that scheme, and the weight as the op's kernel wants it."""
    traits: dict[str, Trait] = {"in_features": inputs, "out_features": outputs}
    plain = randn(outputs, inputs, seed=1)
    if scheme not in FLOATS:
        bound = chosen(vars(quantised_linear)[f"linear_{scheme.partition(' ')[0]}"], threads, **traits, group_size=32)
        weight: Any = quantised(scheme, plain)
    else:
        bound = chosen(reference.linear, threads, **traits)
        # Numbers that fp16 has and bf16 has not, or the other way round.
        weight = {"fp32": plain, "fp16": plain.half().float(), "bf16": plain.bfloat16().float() * 2.0**100}[scheme]
    assert bound.packing is not None
    return bound, weight, bound.packing.pack(weight)


def quantised(scheme: str, plain_OE: torch.Tensor) -> QuantisedMatrix:
    """Return the matrix in a scheme, with groups of 32."""
    if scheme == "w4a16":
        return quantise_int4(plain_OE, 32, False)
    if scheme == "fp8":
        return quantise_fp8(plain_OE, 32)
    matrix = quantise_int8(plain_OE, 32)
    if scheme.endswith("zeros"):
        # As a GPTQ file of 8 bits without symmetry has them.
        zeros_OG = torch.randint(-100, 100, matrix.scales_OG.shape, generator=torch.Generator().manual_seed(4))
        return replace(matrix, zeros_OG=zeros_OG.to(torch.int8))
    return matrix


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 100), (1056, 65)])
def test_a_token_alone_and_among_others_comes_to_the_same_bits(scheme: str, inputs: int, outputs: int) -> None:
    bound, _, packed = product(scheme, inputs, outputs)
    x_TE, bias_O = randn(TOKENS, inputs, seed=2), randn(outputs, seed=3)
    alone_TO = torch.cat([bound(x_TE[token : token + 1], packed, bias_O) for token in range(TOKENS)])
    for count in range(2, 34):
        for start in (0, 3):
            together_TO = bound(x_TE[start : start + count], packed, bias_O)
            assert torch.equal(together_TO, alone_TO[start : start + count]), count


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tokens", [1, 3, 300])
def test_tokens_agree_with_the_reference(scheme: str, tokens: int) -> None:
    bound, weight, packed = product(scheme, 544, 72)
    x_TE = randn(tokens, 544, seed=2)
    expected_TO = bound.op.reference(x_TE, weight, None)
    torch.testing.assert_close(bound(x_TE, packed, None) / expected_TO.std(), expected_TO / expected_TO.std())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_threads_change_no_bit(scheme: str) -> None:
    products = [product(scheme, 288, 1000, threads) for threads in (1, 2, 4, 8)]
    for tokens in (1, 3, TOKENS, 300):
        x_TE = randn(tokens, 288)
        alone, *together = [bound(x_TE, packed, None) for bound, _, packed in products]
        assert all(torch.equal(alone, each) for each in together)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_token_comes_to_nothing(scheme: str) -> None:
    """A step in which no row wants logits has none."""
    bound, _, packed = product(scheme, 64, 70)
    assert bound(randn(0, 64), packed, None).shape == (0, 70)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_unpacking_gives_back_what_was_packed(scheme: str) -> None:
    bound, weight, packed = product(scheme, 64, 70)
    assert bound.packing is not None
    unpacked = bound.packing.unpack(packed)
    parts = [(weight, unpacked)]
    if scheme not in FLOATS:
        parts = [(getattr(weight, part), getattr(unpacked, part)) for part in ("values", "scales_OG", "zeros_OG")]
    for want, got in parts:
        assert (want is None and got is None) or (want.dtype == got.dtype and torch.equal(want, got))


@pytest.mark.parametrize(("inputs", "group_size"), [(66, -1), (96, 6), (100, 32)])
def test_int8_takes_groups_of_any_even_width(inputs: int, group_size: int) -> None:
    size = inputs if group_size == -1 else group_size
    bound = chosen(quantised_linear.linear_w8a8, in_features=inputs, out_features=70, group_size=group_size)
    weight, x_TE = quantise_int8(randn(70, inputs, seed=1), size), randn(9, inputs, seed=2)
    assert bound.packing is not None
    torch.testing.assert_close(
        bound(x_TE, bound.packing.pack(weight), None), quantised_linear.linear_w8a8.reference(x_TE, weight, None)
    )


@pytest.mark.parametrize("inputs", [64, 66])
def test_the_smallest_activations_keep_their_signs(inputs: int) -> None:
    """Their scale is below the smallest normal number, so it is itself rounded, by up to half."""
    bound = chosen(quantised_linear.linear_w8a8, in_features=inputs, out_features=70, group_size=-1)
    weight = quantise_int8(torch.eye(70, inputs) * 2.0**100, inputs)
    x_TE = torch.full((9, inputs), 190 * 2.0**-149)
    x_TE[:, ::2] *= -1
    assert bound.packing is not None
    y_TO = bound(x_TE, bound.packing.pack(weight), None)
    assert torch.equal(y_TO.sign()[:, :inputs], x_TE.sign())
    expected_TO = quantised_linear.linear_w8a8.reference(x_TE, weight, None)
    torch.testing.assert_close(y_TO, expected_TO, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_narrower_registers_change_no_bit(scheme: str, narrow: ctypes.CDLL) -> None:
    tensor, bias_O = randn(200, 576, seed=1), randn(200, seed=3)
    weight = tensor if scheme in FLOATS else quantised(scheme, tensor)
    results = []
    for each in (kernels(), narrow):
        assert isinstance(each, ctypes.CDLL)
        calls = Calls(each, 2)
        product, int8 = ProductKernel(calls), Int8Kernel(calls)
        packing = int8.packing if scheme == "w8a8" else EXACT if scheme in FLOATS else QUANTISED
        run = int8.linear if scheme == "w8a8" else product.linear if scheme in FLOATS else product.quantised
        packed = packing.pack(weight)
        results.append([run(randn(tokens, 576), packed, bias_O) for tokens in (*range(1, 30), 300)])
    for wide_TO, narrow_TO in zip(*results, strict=True):
        assert torch.equal(wide_TO, narrow_TO)


def test_weights_take_16_bits_only_where_that_loses_nothing() -> None:
    plain = randn(64, 32)
    kinds = [pack_exactly(weight).numbers.dtype for weight in (plain, plain.half().float(), plain.bfloat16().float())]
    # These bf16 numbers are small enough to be fp16 numbers too.
    assert kinds == [torch.float32, torch.float16, torch.float16]
    assert pack_exactly(plain.bfloat16().float() * 2.0**100).numbers.dtype is torch.bfloat16


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_made_of_few_bits_are_kept_in_them_and_change_no_bit(bits: int) -> None:
    """As the tensors of a GGUF file are made: fp16 scales, 127 the largest of a group, or both 0 and 15 in it."""
    rng = torch.Generator().manual_seed(0)
    scales_OG1, offsets_OG1 = ((randn(100, 10, 1, seed=seed).abs() / 50).half().float() for seed in (2, 3))
    if bits == 8:
        values_OGS = torch.randint(-127, 128, (100, 10, 32), generator=rng)
        values_OGS[:, :, 5] = -127
        weight_OGS = values_OGS * scales_OG1
    else:
        values_OGS = torch.randint(0, 16, (100, 10, 32), generator=rng)
        values_OGS[:, :, 5], values_OGS[:, :, 9] = 0, 15
        weight_OGS = values_OGS * scales_OG1 - offsets_OG1
    weight_OE = weight_OGS.flatten(1)
    weight_OE[7, 32:64] = 0
    packed, x_TE = pack_exactly(weight_OE), randn(9, 320, seed=1)
    assert packed.nbytes == 128 * 320 * bits // 8 + 128 * 10 * (2 if bits == 8 else 4)
    assert torch.equal(unpack_exactly(packed), weight_OE)
    linear, rows = chosen(reference.linear), chosen(reference.embedding)
    wide = PanelMatrix(in_panels(weight_OE), (100, 320))
    for tokens in (1, 5, 9):
        assert torch.equal(linear(x_TE[:tokens], packed, None), linear(x_TE[:tokens], wide, None))
    ids_T = torch.tensor([99, 0, 7, 16])
    assert torch.equal(rows(ids_T, packed), weight_OE[ids_T])
    weight_OE[50, 3] += 1e-5
    assert pack_exactly(weight_OE).numbers.dtype is torch.float32


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nan_stays_with_its_token(scheme: str) -> None:
    bound, _, packed = product(scheme, 64, 70)
    x_TE = randn(9, 64)
    clean_TO = bound(x_TE, packed, None)
    x_TE[4, 7] = torch.nan
    spoilt_TO = bound(x_TE, packed, None)
    assert spoilt_TO[4].isnan().all()
    others = [token for token in range(9) if token != 4]
    assert torch.equal(spoilt_TO[others], clean_TO[others])


def test_an_id_outside_of_the_vocabulary_is_refused() -> None:
    bound, packed = chosen(reference.embedding, size=8), pack_exactly(randn(10, 8))
    for wrong in (10, -1):
        with pytest.raises(IndexError, match="vocabulary of 10"):
            bound(torch.tensor([3, wrong]), packed)


EXPERTS, TOP_K = 5, 2


@pytest.mark.parametrize("scheme", ["fp32", "bf16", "w8a8", "w8a16", "w8a16 with zeros", "w4a16", "fp8"])
@pytest.mark.parametrize(("hidden", "width"), [(320, 96), (90, 42)], ids=["in panels", "beside panels"])
def test_a_token_visits_experts_alone_as_among_others(scheme: str, hidden: int, width: int) -> None:
    gate_up, down = randn(EXPERTS, 2 * width, hidden, seed=1) / 18, randn(EXPERTS, hidden, width, seed=2) / 10
    traits: dict[str, Trait] = {"experts": EXPERTS, "top_k": TOP_K, "hidden": hidden, "width": width}
    rest: tuple[Any, ...] = ()
    dtype = torch.bfloat16 if scheme == "bf16" else torch.float32
    if scheme not in FLOATS:
        kind = scheme.partition(" ")[0]
        bound = chosen(
            run_quantised_experts, **traits, scheme=kind, group_size=32, symmetric=scheme in ("w8a8", "w8a16", "fp8")
        )
        stacked = [quantised(scheme, each.flatten(0, 1)) for each in (gate_up, down)]
        weights: list[Any] = [replace(each, matrices=EXPERTS) for each in stacked]
        rest = (EXPERTS, kind)
    else:
        bound = chosen(moe_ops.run_experts, dtype=scheme, **traits)
        weights = [gate_up.to(dtype), down.to(dtype)]
    assert bound.packing is not None
    packed = [bound.packing.pack(each) for each in weights]
    for stored, each in zip(packed, weights, strict=True):
        back = bound.packing.unpack(stored)
        assert torch.equal(full_precision(back), full_precision(each))
    x_TE = randn(TOKENS, hidden).to(dtype)
    weights_TC, ids_TC = moe_ops.route.reference(randn(TOKENS, EXPERTS, seed=3), TOP_K, True)
    together = bound(x_TE, *packed, weights_TC, ids_TC, *rest)
    expected = bound.op.reference(x_TE, *weights, weights_TC, ids_TC, *rest)
    tolerance = 2e-2 if scheme == "bf16" else 1e-5
    torch.testing.assert_close(together, expected, atol=tolerance, rtol=tolerance)
    for start, end in ((0, 1), (7, 8), (3, 17), (39, 40), (5, 5)):
        some = slice(start, end)
        assert torch.equal(bound(x_TE[some], *packed, weights_TC[some], ids_TC[some], *rest), together[some])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_16_bits_are_widened_and_rounded_once(dtype: str) -> None:
    """The result is that of the fp32 kernel on the same numbers, rounded."""
    narrow = torch_dtype(dtype)
    x, other, weight = (randn(7, 96, seed=seed).to(narrow) for seed in range(3))
    heads = x.view(7, 3, 32)
    calls: list[tuple[Op[..., Any], tuple[Any, ...]]] = [
        (reference.rms_norm, (x, weight[0], 1e-5)),
        (reference.add_rms_norm, (x, other, weight[0], 1e-5)),
        (reference.rope, (heads, other[:, :32], weight[:, :32])),
        (reference.silu_and_mul, (x,)),
        (moe_ops.add_gated, (x, other[:, :1], weight)),
    ]
    for op, arguments in calls:
        wide = [each.float() if isinstance(each, torch.Tensor) else each for each in arguments]
        expected, got = chosen(op)(*wide), chosen(op, dtype=dtype)(*arguments)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for mine, want in pairs:
            assert mine.dtype is narrow
            assert torch.equal(mine, want.to(narrow)), op.name
