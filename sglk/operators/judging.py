"""Whether an implementation's outputs are those of the reference, within what its dtype can hold.

The reference gets 16-bit arguments in fp32, which holds them exactly, so that its own rounding is not in what the
implementation is measured by. A judge returns what is wrong, in words, or None. Letters: T tokens, B rows, X experts,
C chosen, V vocabulary, S slots, K heads, D head width, N single ones.
"""

from collections.abc import Sequence
from typing import Any

import torch

from sglk.backends.kv_values import HEAD_MAJOR_AXES, read_kv
from sglk.backends.sampling_ops import drop_unlikely, keep_likeliest, scaled_probs
from sglk.operators.arguments.dense import Shape

BOUNDS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}
"""Largest error by dtype of an output, in units of the output's root mean square plus the expected value.

Four times the relative rounding of the 16-bit dtypes; fp32 sums of some ten thousand products stay far below theirs.
"""

TYPICAL_SHARE = 0.3
"""Of a bound: the largest root mean square of all errors of an output. Rounding falls to either side and mostly well
inside the bound; a wrong factor, or sums in a narrower dtype, move all values."""

FEW = 64
"""Values below which their root mean square says little."""

EXTRA_BOUNDS = {"w8a8": 3e-2, "w8a16": 0.0, "w4a16": 0.0, "fp8": 0.2, "int8 KV": 1e-3}
"""What comes on top where weights are quantised: an activation that falls to the other side of a rounding step (w8a8),
activations that are rounded to e4m3, as a chip may (fp8); and where keys and values in int8 are multiplied as integers,
queries and weights of 16 bits, which is little beside what int8 has lost."""

Outputs = Sequence[torch.Tensor]
Arguments = Sequence[Any]


def close_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand numbers within the bound of their dtype."""
    extra = EXTRA_BOUNDS.get(shape.get("scheme", ""), 0.0)
    return first_problem(error_beyond(bound_of(got) + extra, want, got) for want, got in pairs(expected, actual))


def equal_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand the same numbers."""
    return first_problem(unequal(want, got) for want, got in pairs(expected, actual))


def w8a8_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand numbers within the bound of int8 activations."""
    return close_outputs({**shape, "scheme": "w8a8"}, arguments, expected, actual)


def fp8_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand numbers within the bound of e4m3 activations."""
    return close_outputs({**shape, "scheme": "fp8"}, arguments, expected, actual)


def attention_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand numbers within the bound of their dtype, and of keys and values in int8."""
    scheme = "int8 KV" if shape["kv_dtype"] == "int8" else ""
    return close_outputs({**shape, "scheme": scheme}, arguments, expected, actual)


def routed_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand the same experts for each token, in any order, with the same weights."""
    (want_TC, want_ids_TC), (got_TC, got_ids_TC) = expected, actual
    outside = first_problem((outside_of(shape["experts"], got_ids_TC), unlike(want_TC, got_TC)))
    if outside is not None:
        return outside
    nothing_TX = torch.zeros(shape["tokens"], shape["experts"])
    want_TX = nothing_TX.scatter(1, want_ids_TC, want_TC.float())
    got_TX = nothing_TX.scatter(1, got_ids_TC.long(), got_TC.float())
    wrong = int(((want_TX > 0) != (got_TX > 0)).any(-1).sum())
    if wrong:
        return f"other experts for {wrong} of {shape['tokens']} tokens"
    return error_beyond(BOUNDS[torch.float32], want_TX, got_TX)


def stored_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand the same bits in every slot of the pool; of int8, values within a step of what was stored."""
    if len(actual) == 2:
        return first_problem(unequal(want, got) for want, got in pairs(expected, actual))
    slots_T = arguments[4]
    others_S = torch.ones(len(actual[2]), dtype=torch.bool)
    others_S[slots_T] = False
    untouched = [unequal(by_slot(want)[others_S], by_slot(got)[others_S]) for want, got in pairs(expected, actual)]
    if (problem := first_problem(untouched)) is not None:
        return f"slots that nothing was to be stored in: {problem}"
    pairs_of = ((0, 2), (1, 3))
    want, got = (
        torch.stack([read_kv(outputs[pool], slots_T, outputs[scales], torch.float32) for pool, scales in pairs_of])
        for outputs in (expected, actual)
    )
    steps = torch.stack([expected[2][slots_T], expected[3][slots_T]]).unsqueeze(-1)
    worst = ((want - got).abs() - steps * 1.01).max()
    return None if worst <= 0 else f"stored values differ by more than a step of int8, by {float(worst):.3g}"


def drawn_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand the same ids, but for a row whose draw lies on the border of two ids as far as fp32 can tell."""
    if (problem := outside_of(shape["vocab_size"], actual[0])) is not None:
        return problem
    logits_BV, temperature_B, top_k_B, top_p_B, min_p_B, uniform_B = arguments
    probs_BV = scaled_probs(logits_BV, temperature_B)
    ordered_BV, ids_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    kept_BV = drop_unlikely(keep_likeliest(probs_BV, ordered_BV, ids_BV, top_k_B, top_p_B), min_p_B).double()
    above_BV = (kept_BV / kept_BV.sum(-1, keepdim=True)).cumsum(-1)
    got_B1 = actual[0].long().unsqueeze(1)
    high_B = above_BV.gather(1, got_B1).squeeze(1)
    low_B = high_B - (kept_BV / kept_BV.sum(-1, keepdim=True)).gather(1, got_B1).squeeze(1)
    possible_B = (uniform_B > low_B - 1e-4) & (uniform_B < high_B + 1e-4)
    wrong = int((~possible_B & (actual[0] != expected[0])).sum())
    return f"{wrong} of {len(possible_B)} rows draw another id" if wrong else None


def likeliest_outputs(shape: Shape, arguments: Arguments, expected: Outputs, actual: Outputs) -> str | None:
    """Demand the same logprobs; among ids of one logprob any may be named, each once."""
    problem = close_outputs(shape, arguments, expected[:2], actual[:2]) or outside_of(shape["vocab_size"], actual[2])
    if problem is not None:
        return problem
    ids_BC = actual[2].long()
    if any(len(set(row)) < len(row) for row in ids_BC.tolist()):
        return "one id is named twice among the likeliest of a row"
    named_BC = arguments[0].float().log_softmax(-1).gather(1, ids_BC)
    return error_beyond(BOUNDS[torch.float32], named_BC, actual[1])


def by_slot(pool: torch.Tensor) -> torch.Tensor:
    """Return a pool or its scales with a row for each slot."""
    return pool.transpose(1, 2).flatten(0, 1) if pool.ndim == HEAD_MAJOR_AXES else pool


def bound_of(output: torch.Tensor) -> float:
    """Return the largest error of an output; one that is no number of a compute dtype is judged as fp32."""
    return BOUNDS.get(output.dtype, BOUNDS[torch.float32])


def pairs(expected: Outputs, actual: Outputs) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the outputs side by side."""
    return list(zip(expected, actual, strict=True))


def first_problem(problems: Any) -> str | None:
    """Return the first that is none of None."""
    return next((problem for problem in problems if problem is not None), None)


def unlike(expected: torch.Tensor, actual: torch.Tensor) -> str | None:
    """Say how the shapes differ."""
    if expected.shape != actual.shape:
        return f"an output has shape {list(actual.shape)}, expected {list(expected.shape)}"
    return None


def outside_of(limit: int, ids: torch.Tensor) -> str | None:
    """Say how many ids are below 0, or not below `limit`."""
    outside = int(((ids < 0) | (ids >= limit)).sum())
    return f"{outside} of {ids.numel()} ids are outside 0..{limit - 1}" if outside else None


def unequal(expected: torch.Tensor, actual: torch.Tensor) -> str | None:
    """Say how many numbers differ; NaN equals NaN."""
    if (problem := unlike(expected, actual)) is not None:
        return problem
    want, got = expected.double(), actual.double()
    differing = int(((want != got) & ~(want.isnan() & got.isnan())).sum())
    return f"{differing} of {want.numel()} values differ" if differing else None


def error_beyond(bound: float, expected: torch.Tensor, actual: torch.Tensor) -> str | None:
    """Say by how much |actual - expected| exceeds bound * (root mean square of expected + |expected|).

    Else whether the root mean square of all errors exceeds TYPICAL_SHARE of the bound.
    """
    if (problem := unlike(expected, actual)) is not None:
        return problem
    want, got = expected.double(), actual.double()
    # What is to be infinite, as a masked logit is, has no error.
    finite = want.isfinite()
    broken = int((finite & ~got.isfinite()).sum())
    if broken:
        return f"{broken} of {want.numel()} values are not finite"
    if not torch.equal(want[~finite], got[~finite]) and not want[~finite].isnan().any():
        return "a value that is to be infinite is not"
    errors = (want - got).abs()[finite]
    if not errors.numel():
        return None
    size = want[finite].square().mean().sqrt()
    share = errors / (bound * (size + want[finite].abs()) + 1e-30)
    worst = float(share.max())
    beyond = int((share > 1).sum())
    if beyond:
        return (
            f"{beyond} of {want.numel()} values differ by more than {bound:g} of their size, by up to "
            f"{worst * bound:.3g} (largest error {float(errors.max()):.3g})"
        )
    typical, most = float(errors.square().mean().sqrt() / (size + 1e-30)), bound * TYPICAL_SHARE
    if errors.numel() < FEW or typical <= most:
        return None
    return f"values differ by {typical:.3g} of their size on the whole, more than {most:g}, as if by a wrong factor"
