"""Ops that compute nothing: each takes the time of its work and returns tensors of the right shape without content.

Letters as in `reference.py`; also C chosen experts or likeliest ids.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops
from sglk.backends.constraints import Constraint
from sglk.backends.ops import Denial, Fallback, Op, OpRegistry, P, R
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.rows import PagedRows
from sglk.backends.sim_clock import DeviceClock
from sglk.backends.sim_rates import Rates
from sglk.backends.work import Work, work_of

PROVIDER = "sim"

Result = Callable[..., Any]
"""Makes the results of an op from its arguments."""


class SimOps(OpRegistry):
    """Every op, within the demands that a chip declares; where they are not met, the time of the reference."""

    def __init__(
        self,
        clock: DeviceClock,
        rates: Rates,
        limits: Mapping[str, Sequence[Constraint]],
        fallback: Fallback = "warn",
        deny: Sequence[Denial] = (),
    ) -> None:
        super().__init__(fallback, deny)
        self._clock = clock
        self._rates = rates
        for op, result in RESULTS.items():
            self.register(op, PROVIDER, timed(op, result, rates.op_s, clock), *limits.get(op.name, ()))

    def reference(self, op: Op[P, R]) -> Callable[P, R]:
        """Return an op that takes as long as the reference would."""
        return timed(op, RESULTS[op], self._rates.fallback_s, self._clock)


def timed(op: Op[P, R], result: Result, seconds: Callable[[Work], float], clock: DeviceClock) -> Callable[P, R]:
    """Return an implementation of `op` that takes `seconds` of its work on the clock and returns `result`.

    The time of a shape is worked out once: a step calls an op once a layer, and layers are alike.
    """
    known: dict[Hashable, float] = {}
    of_rows: WeakKeyDictionary[PagedRows, dict[Hashable, float]] = WeakKeyDictionary()

    def run(*args: Any, **kwargs: Any) -> Any:
        times, shapes = known, list[Hashable](kwargs)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, PagedRows):
                # Every step has rows of its own.
                times = of_rows.setdefault(arg, {})
            else:
                shapes.append(_shape(arg))
        key = tuple(shapes)
        if key not in times:
            times[key] = seconds(work_of(op.name, *args, **kwargs))
        clock.charge(times[key])
        return result(*args, **kwargs)

    return run


def _shape(arg: Any) -> Hashable:
    """Return all of an argument that its work depends on."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.dtype
    if isinstance(arg, QuantisedMatrix):
        return arg.values.shape, arg.scales_OG.shape, arg.zeros_OG is None
    return arg if isinstance(arg, int | float | str) else arg is None


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
