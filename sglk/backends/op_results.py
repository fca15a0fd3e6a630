"""What each op returns, made of its arguments: the form of results, without content.

Letters as in `reference.py`; also C chosen experts or likeliest ids.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops
from sglk.backends.ops import Op
from sglk.backends.quantised import QuantisedMatrix

Result = Callable[..., Any]
"""Makes the results of an op from its arguments."""


def result_flaw(op: Op[..., Any], result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return how the form of what an implementation returned differs from what `op` returns, or None.

    Looks at number, shape, dtype and device, not at values.
    """
    if op not in RESULTS or (expected := RESULTS[op](*args, **kwargs)) is None:
        return None
    wanted = expected if isinstance(expected, tuple) else (expected,)
    given = result if isinstance(expected, tuple) and isinstance(result, tuple) else (result,)
    device = next(each.device for each in args if isinstance(each, torch.Tensor))
    texts = [f"{_form(want)} on {device.type}" for want in wanted]
    found = [
        f"{_form(each)} on {each.device.type}" if isinstance(each, torch.Tensor) else _kind(each) for each in given
    ]
    return None if found == texts else f"it returned {' and '.join(found)}, not {' and '.join(texts)}"


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _embedding(ids_T: torch.Tensor, weight_VE: torch.Tensor) -> torch.Tensor:
    return _empty((len(ids_T), weight_VE.shape[1]), weight_VE.dtype)


def _linear(x_TE: torch.Tensor, weight: torch.Tensor | QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    return _empty((*x_TE.shape[:-1], weight.shape[0]), x_TE.dtype)


def _like_first(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _empty(x.shape, x.dtype)


def _add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty(x_TE.shape, x_TE.dtype), residual_TE


def _silu_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
    return _empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2), x_T2F.dtype)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _route(logits_TX: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    shape_TC = (len(logits_TX), top_k)
    return _empty(shape_TC, torch.float32), _empty(shape_TC, torch.int64)


def _route_grouped(
    logits_TX: torch.Tensor, bias_X: torch.Tensor | None, top_k: int, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _route(logits_TX, top_k, False)


def _greedy(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty((len(logits_BV),), logits_BV.dtype), _empty((len(logits_BV),), torch.int64)


def _sample(logits_BV: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _empty((len(logits_BV),), torch.int64)


def _token_logprobs(
    logits_BV: torch.Tensor, ids_B: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape_BC = (len(logits_BV), count)
    return _empty((len(ids_B),), torch.float32), _empty(shape_BC, torch.float32), _empty(shape_BC, torch.int64)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


RESULTS: dict[Op[..., Any], Result] = {
    reference.embedding: _embedding,
    reference.linear: _linear,
    reference.rms_norm: _like_first,
    reference.add_rms_norm: _add_rms_norm,
    reference.rope: _like_first,
    reference.silu_and_mul: _silu_and_mul,
    reference.store_kv: _nothing,
    reference.attention_prefill: _like_first,
    reference.attention_decode: _like_first,
    quantised_linear.linear_w8a8: _linear,
    quantised_linear.linear_w8a16: _linear,
    quantised_linear.linear_w4a16: _linear,
    quantised_linear.linear_fp8: _linear,
    moe_ops.route: _route,
    moe_ops.route_grouped: _route_grouped,
    moe_ops.run_experts: _like_first,
    moe_ops.add_gated: _like_first,
    quantised_moe.run_quantised_experts: _like_first,
    sampling_ops.greedy: _greedy,
    sampling_ops.sample: _sample,
    sampling_ops.adjust_logits: _nothing,
    sampling_ops.mask_logits: _nothing,
    sampling_ops.token_logprobs: _token_logprobs,
}
"""What each op returns."""
