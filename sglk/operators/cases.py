"""Calls that an op is tried with: which shapes, which dtypes, from which seed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops
from sglk.backends.base import Capabilities
from sglk.backends.constraints import Trait
from sglk.backends.ops import Op
from sglk.operators.arguments.dense import Shape
from sglk.operators.recipes import RECIPES, Recipe

OPS: dict[str, Op[..., Any]] = {
    value.name: value
    for module in (reference, quantised_linear, moe_ops, quantised_moe, sampling_ops)
    for value in vars(module).values()
    if isinstance(value, Op)
}
"""Every op of the seam by name."""


@dataclass(frozen=True)
class OpCase:
    """One call of an op: the numbers that fix its arguments, and the seed that fills them."""

    op: str
    shape: Shape
    """Plain values: the op's traits, and what only the arguments need, such as `tokens` or `bias`."""
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        """How the op is tried."""
        return RECIPES[self.op]

    @property
    def traits(self) -> dict[str, Trait]:
        """The shape class, as `OpRegistry.select` takes it."""
        return {name: self.shape[name] for name in (*self.recipe.traits, "dtype")}

    def arguments(self) -> tuple[Any, ...]:
        """Make the arguments, on the CPU; the same at every call."""
        return self.recipe.make(self.shape, torch.Generator().manual_seed(self.seed))

    def __str__(self) -> str:
        numbers = ", ".join(f"{name}={value}" for name, value in self.shape.items())
        return f"{self.op}({numbers})"


def matrix(capabilities: Capabilities, seed: int = 0) -> Iterator[OpCase]:
    """Yield small cases of every op in the dtypes, page sizes and schemes that a backend declares.

    Among them are one token and many, widths that are no power of two, bad fits for groups, rows of unequal length,
    windows, and every kind of KV pool.
    """
    for case in _matrix(capabilities):
        yield replace(case, seed=seed)


def _matrix(capabilities: Capabilities) -> Iterator[OpCase]:
    # In fp32 first: what is wrong there is easiest to see.
    for dtype in sorted(capabilities.dtypes, key=lambda name: (name != "fp32", name)):
        yield from _dense(dtype)
        yield from _paged(dtype, capabilities)
        yield from _experts(dtype)
        yield from _logits(dtype)
        for scheme in sorted(capabilities.quantization):
            yield from _quantised(dtype, scheme)


def _dense(dtype: str) -> Iterator[OpCase]:
    for tokens, size in ((1, 64), (7, 576), (33, 96)):
        yield OpCase("embedding", {"tokens": tokens, "vocab_size": 97, "size": size, "dtype": dtype})
        yield OpCase("rms_norm", {"tokens": tokens, "heads": 0, "size": size, "dtype": dtype})
        yield OpCase("add_rms_norm", {"tokens": tokens, "size": size, "dtype": dtype})
        yield OpCase("silu_and_mul", {"tokens": tokens, "size": size, "dtype": dtype})
        yield OpCase("add_gated", {"tokens": tokens, "size": size, "dtype": dtype})
    yield OpCase("rms_norm", {"tokens": 5, "heads": 4, "size": 128, "dtype": dtype})
    for tokens, heads, width in ((1, 1, 64), (5, 12, 64), (130, 3, 128)):
        yield OpCase("rope", {"tokens": tokens, "heads": heads, "head_dim": width, "dtype": dtype})
    for tokens, inputs, outputs, bias in ((1, 64, 96, True), (33, 576, 192, False), (16, 1024, 1, False)):
        shape = {"tokens": tokens, "in_features": inputs, "out_features": outputs, "bias": bias, "dtype": dtype}
        yield OpCase("linear", shape)


def _quantised(dtype: str, scheme: str) -> Iterator[OpCase]:
    shapes: tuple[tuple[int, int, int, int, bool, bool], ...] = (
        # tokens, inputs, outputs, inputs per scale, bias, whether columns are out of order
        (1, 128, 64, -1, True, False),
        (17, 256, 96, 32, False, False),
        (4, 160, 48, 64, True, False),
        (5, 128, 32, 64, False, True),
    )
    # Checkpoints with zero points are of these two.
    for symmetric in (True, False) if scheme in ("w4a16", "w8a16") else (True,):
        for tokens, inputs, outputs, group_size, bias, reordered in shapes:
            sizes = {"tokens": tokens, "in_features": inputs, "out_features": outputs, "bias": bias}
            layout = {"group_size": group_size, "symmetric": symmetric, "reordered": reordered}
            yield OpCase(f"linear_{scheme}", {**sizes, **layout, "dtype": dtype})
        for tokens, group_size in ((1, -1), (9, 32)):
            numbers = {"tokens": tokens, "experts": 8, "top_k": 2, "hidden": 64, "width": 96}
            packed: Shape = {"scheme": scheme, "group_size": group_size, "symmetric": symmetric}
            yield OpCase("run_quantised_experts", {**numbers, **packed, "dtype": dtype})


def _paged(dtype: str, capabilities: Capabilities) -> Iterator[OpCase]:
    page_sizes, layout = capabilities.page_sizes or (1, 16), {"head_major": capabilities.head_major_pages}
    for kv_dtype in sorted({dtype, *capabilities.kv_cache_dtypes}):
        for page_size in page_sizes:
            pool = {"kv_heads": 2, "head_dim": 64, "kv_dtype": kv_dtype, "page_size": page_size}
            yield OpCase("store_kv", {"tokens": 19, **pool, **layout, "dtype": dtype})
            yield from _attention({**pool, **layout, "heads": 8, "window": 0, "dtype": dtype})
    pool = {"kv_heads": 3, "kv_dtype": dtype, "page_size": page_sizes[0], **layout, "dtype": dtype}
    yield from _attention({**pool, "head_dim": 64, "heads": 9, "window": 20})
    yield from _attention({**pool, "kv_heads": 4, "head_dim": 128, "heads": 4, "window": 0})


def _attention(shape: Shape) -> Iterator[OpCase]:
    decode_lens, prefill_lens = (1, 37, 16, 130), (1, 37, 40, 30, 18)
    yield OpCase("attention_decode", {"query_lens": (1,) * len(decode_lens), "kv_lens": decode_lens, **shape})
    yield OpCase("attention_prefill", {"query_lens": (1, 5, 40, 1, 17), "kv_lens": prefill_lens, **shape})


def _experts(dtype: str) -> Iterator[OpCase]:
    for tokens, experts, top_k in ((1, 8, 2), (9, 6, 6), (40, 64, 8)):
        numbers = {"tokens": tokens, "experts": experts, "top_k": top_k}
        yield OpCase("route", {**numbers, "renormalise": tokens > 1, "dtype": dtype})
        yield OpCase("run_experts", {**numbers, "hidden": 64, "width": 96, "dtype": dtype})
    for scoring in ("softmax", "sigmoid"):
        numbers = {"tokens": 9, "experts": 32, "top_k": 4, "groups": 8, "top_groups": 3}
        yield OpCase("route_grouped", {**numbers, "scoring": scoring, "renormalise": True, "dtype": dtype})


def _logits(dtype: str) -> Iterator[OpCase]:
    for tokens, vocab_size in ((1, 320), (7, 4099)):
        numbers = {"tokens": tokens, "vocab_size": vocab_size, "dtype": dtype}
        for op in ("greedy", "sample", "adjust_logits", "mask_logits"):
            yield OpCase(op, numbers)
        yield OpCase("token_logprobs", {**numbers, "count": 5})
