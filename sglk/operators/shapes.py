"""The shape of a call, read off its arguments and its shape class: what an OpCase makes such arguments from again."""

from collections.abc import Mapping, Sequence
from typing import Any

from sglk.backends.constraints import Trait
from sglk.backends.kv_values import HEAD_MAJOR_AXES
from sglk.operators.recipes import RECIPES


def shape_of(op: str, traits: Mapping[str, Trait], arguments: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers of a call of an op; the arguments may be on torch's meta device."""
    ordered = {name: traits[name] for name in (*RECIPES[op].traits, "dtype")}
    return {**_beside_traits(op, arguments), **ordered}


def _beside_traits(op: str, arguments: Sequence[Any]) -> dict[str, Any]:
    if op.startswith("attention_"):
        rows = arguments[3]
        lens = {"query_lens": tuple(rows.query_lens_B.tolist()), "kv_lens": tuple(rows.kv_lens_B.tolist())}
        return {**lens, "head_major": arguments[1].ndim == HEAD_MAJOR_AXES}
    first = arguments[0]
    tokens = {"tokens": first.shape[0]}
    if op == "store_kv":
        return {**tokens, "head_major": arguments[2].ndim == HEAD_MAJOR_AXES}
    if op == "embedding":
        return {**tokens, "vocab_size": arguments[1].shape[0]}
    if op.startswith("linear"):
        return {**tokens, "bias": arguments[2] is not None}
    if op in ("rms_norm", "rope"):
        return {**tokens, "heads": first.shape[1] if len(first.shape) == 3 else 0}
    if op == "token_logprobs":
        return {**tokens, "count": arguments[2]}
    return tokens
