"""Offering the own kernels of the cpu backend: each op with what it demands of shapes and dtypes."""

import ctypes
from typing import Any

from sglk.backends import quantised_linear, reference
from sglk.backends.constraints import Constraint, Traits, at_most, multiple_of, one_of
from sglk.backends.cpu_kernels.attention import WIDEST, AttentionKernel
from sglk.backends.cpu_kernels.elementwise import ElementwiseKernels
from sglk.backends.cpu_kernels.int8 import INT8, Int8Kernel
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.cpu_kernels.panels import ALIGNED, EXACT, QUANTISED
from sglk.backends.cpu_kernels.product import ProductKernel
from sglk.backends.ops import Op, OpRegistry

PROVIDER = "cpu_kernels"

FP32 = one_of("dtype", "fp32")
KV_DTYPES = one_of("kv_dtype", "fp32", "fp16", "bf16", "int8")
"""8-bit floats are torch's."""

OPS: tuple[Op[..., Any], ...] = (
    reference.linear,
    reference.embedding,
    quantised_linear.linear_w8a8,
    quantised_linear.linear_w8a16,
    quantised_linear.linear_w4a16,
    reference.attention_decode,
    reference.store_kv,
    reference.rms_norm,
    reference.add_rms_norm,
    reference.rope,
    reference.silu_and_mul,
)


def register_cpu_kernels(ops: OpRegistry) -> None:
    """Offer every kernel; where they cannot be built each says why it is not used."""
    library = kernels()
    if isinstance(library, str):
        missing = Constraint(f"not built, {library}", lambda _: False)
        for op in OPS:
            ops.register(op, PROVIDER, op.reference, missing)
    else:
        _register(ops, library, FP32)


def _register(ops: OpRegistry, library: ctypes.CDLL, *demands: Constraint) -> None:
    pairs = (Constraint("pairs of inputs share a scale", _groups_are_even),)
    int8 = Int8Kernel(library)
    product, attention, elementwise = ProductKernel(library), AttentionKernel(library), ElementwiseKernels(library)
    wide = Constraint("out_features >= 64", _fills_panels)
    ops.register(reference.linear, PROVIDER, product.linear, *demands, wide, packing=EXACT)
    ops.register(reference.embedding, PROVIDER, product.embedding, *demands, packing=EXACT)
    ops.register(quantised_linear.linear_w8a16, PROVIDER, product.quantised, *demands, packing=QUANTISED)
    ops.register(quantised_linear.linear_w4a16, PROVIDER, product.quantised, *demands, *pairs, packing=QUANTISED)
    ops.register(quantised_linear.linear_w8a8, PROVIDER, int8.linear, *demands, *pairs, packing=INT8)
    heads = (multiple_of("head_dim", 8), at_most("head_dim", WIDEST))
    # The kernel reads the page table on the host, which a recorded step has no more of.
    now = Constraint("recorded in {False}", lambda traits: not traits.get("recorded"))
    ops.register(reference.attention_decode, PROVIDER, attention.decode, *demands, KV_DTYPES, *heads, now)
    ops.register(reference.store_kv, PROVIDER, elementwise.store_kv, *demands, KV_DTYPES)
    ops.register(reference.rms_norm, PROVIDER, elementwise.rms_norm, *demands)
    ops.register(reference.add_rms_norm, PROVIDER, elementwise.add_rms_norm, *demands)
    ops.register(reference.rope, PROVIDER, elementwise.rope, *demands)
    ops.register(reference.silu_and_mul, PROVIDER, elementwise.silu_and_mul, *demands)


def _fills_panels(traits: Traits) -> bool:
    outputs = traits.get("out_features")
    return isinstance(outputs, int) and outputs >= ALIGNED


def _groups_are_even(traits: Traits) -> bool:
    inputs, group_size = traits["in_features"], traits["group_size"]
    assert isinstance(inputs, int)
    assert isinstance(group_size, int)
    return inputs % 2 == 0 and (group_size == -1 or group_size % 2 == 0)
