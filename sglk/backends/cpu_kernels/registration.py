"""Offering the own kernels of the cpu backend: each op with what it demands of shapes and dtypes."""

from collections.abc import Callable
from typing import Any

from sglk.backends import moe_ops, quantised_linear, reference, sampling_ops
from sglk.backends.constraints import Constraint, Traits, at_most, one_of
from sglk.backends.cpu_kernels.attention import WIDEST, AttentionKernel
from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.elementwise import ElementwiseKernels
from sglk.backends.cpu_kernels.experts import ExpertKernels
from sglk.backends.cpu_kernels.int8 import Int8Kernel
from sglk.backends.cpu_kernels.library import Instructions, kernels
from sglk.backends.cpu_kernels.panels import EXACT, EXPERTS, QUANTISED
from sglk.backends.cpu_kernels.product import ProductKernel
from sglk.backends.cpu_kernels.sampling import SamplingKernel
from sglk.backends.cpu_kernels.widening import in_fp32
from sglk.backends.ops import Op, OpRegistry, Packing
from sglk.backends.quantised_moe import run_quantised_experts

PROVIDER = "cpu_kernels"

DTYPES = one_of("dtype", "fp32", "bf16", "fp16")
ATTENDED = one_of("kv_dtype", "fp32", "fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2")
WRITTEN = one_of("kv_dtype", "fp32", "fp16", "bf16", "int8")
"""8-bit floats are rounded by torch."""

OPS: tuple[Op[..., Any], ...] = (
    reference.linear,
    reference.embedding,
    quantised_linear.linear_w8a8,
    quantised_linear.linear_w8a16,
    quantised_linear.linear_w4a16,
    quantised_linear.linear_fp8,
    reference.attention_prefill,
    reference.attention_decode,
    reference.store_kv,
    reference.rms_norm,
    reference.add_rms_norm,
    reference.rope,
    reference.silu_and_mul,
    moe_ops.run_experts,
    moe_ops.add_gated,
    run_quantised_experts,
    sampling_ops.sample,
    sampling_ops.greedy,
)


WORK = frozenset(
    op.name
    for op in OPS
    if op.name.startswith(("linear", "attention")) or op in (moe_ops.run_experts, run_quantised_experts)
)
"""Names of the ops that take the time of a step."""


def register_cpu_kernels(ops: OpRegistry, instructions: Instructions, threads: int) -> Calls | None:
    """Offer every kernel; return what calls them. Where they cannot be built each says why it is not used."""
    library = kernels(instructions)
    if isinstance(library, str):
        missing = Constraint(f"not built, {library}", lambda _: False)
        for op in OPS:
            ops.register(op, PROVIDER, op.reference, missing)
        return None
    calls = Calls(library, threads)
    _register(ops, calls)
    return calls


def _register(ops: OpRegistry, calls: Calls) -> None:
    pairs = (Constraint("pairs of inputs share a scale", _groups_are_even),)
    product, attention, elementwise = ProductKernel(calls), AttentionKernel(calls), ElementwiseKernels(calls)
    int8 = Int8Kernel(calls)
    experts = ExpertKernels(product, int8, elementwise)

    def offer(
        op: Op[..., Any],
        function: Callable[..., Any],
        wide: tuple[int, ...],
        *demands: Constraint,
        packing: Packing | None = None,
    ) -> None:
        """`wide` are the arguments that the function wants in fp32; it computes in nothing else."""
        ops.register(op, PROVIDER, in_fp32(calls, function, *wide), DTYPES, *demands, packing=packing)

    offer(reference.linear, product.linear, (0, 2), packing=EXACT)
    ops.register(reference.embedding, PROVIDER, product.embedding, DTYPES, packing=EXACT)
    offer(quantised_linear.linear_w8a16, product.quantised, (0, 2), packing=QUANTISED)
    offer(quantised_linear.linear_w4a16, product.quantised, (0, 2), *pairs, packing=QUANTISED)
    offer(quantised_linear.linear_fp8, product.quantised, (0, 2), packing=QUANTISED)
    offer(quantised_linear.linear_w8a8, int8.linear, (0, 2), *pairs, packing=int8.packing)
    ops.register(moe_ops.run_experts, PROVIDER, experts.plain, DTYPES, packing=EXPERTS)
    for function, packing, *demands in (
        (experts.quantised, QUANTISED, one_of("scheme", "w8a16", "fp8")),
        (experts.quantised, QUANTISED, one_of("scheme", "w4a16"), *pairs),
        (experts.w8a8, int8.packing, one_of("scheme", "w8a8"), *pairs),
    ):
        ops.register(run_quantised_experts, PROVIDER, function, DTYPES, *demands, packing=packing)
    heads = (at_most("head_dim", WIDEST),)
    offer(reference.attention_prefill, attention.prefill, (0,), ATTENDED, *heads)
    offer(reference.attention_decode, attention.decode, (0,), ATTENDED, *heads)
    offer(reference.store_kv, elementwise.store_kv, (0, 1), WRITTEN)
    offer(reference.rms_norm, elementwise.rms_norm, (0, 1))
    offer(reference.add_rms_norm, elementwise.add_rms_norm, (0, 1, 2))
    offer(reference.rope, elementwise.rope, (0, 1, 2))
    offer(reference.silu_and_mul, elementwise.silu_and_mul, (0,))
    sampling = SamplingKernel(calls)
    ops.register(sampling_ops.sample, PROVIDER, sampling.sample, DTYPES)
    ops.register(sampling_ops.greedy, PROVIDER, sampling.greedy, DTYPES)
    offer(moe_ops.add_gated, elementwise.add_gated, (0, 1, 2))


def _groups_are_even(traits: Traits) -> bool:
    group_size = traits["group_size"]
    inputs = [traits[name] for name in ("in_features", "hidden", "width") if name in traits]
    return all(isinstance(each, int) and each % 2 == 0 for each in (*inputs, group_size) if each != -1)
