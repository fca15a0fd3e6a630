"""What each op has to do, whoever implements it: arithmetic operations, and bytes to and from device memory.

Needs no torch: arguments may be the op's real ones (on any device, torch's meta device included) or the stand-ins
of `work_arguments`.

Counted are the operations of the op's definition and, for bytes, every argument read once and every result written
once: what a perfect implementation cannot do without. A multiplication and an addition are two operations. Not counted:
what stays on the chip (scores of attention, widths of experts), page tables, and the conversion of quantised values.

Letters: B rows, T tokens, E hidden width or inputs, O outputs, F feed-forward width, V vocabulary, H query heads,
K key/value heads, D head width, X experts, C experts chosen for a token, N single logits, M rows with a mask.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from sglk.backends.work_arguments import MatrixLike, RowsLike, TensorLike, dtype_of, item_bytes, nbytes

SCHEME_ARITHMETIC = {"w8a8": "int8", "fp8": "fp8"}
"""What a quantisation scheme multiplies in; the others multiply in the dtype of the activations."""

EXPERT_ID_BYTES = 8
FP32_BYTES = 4


class Work(NamedTuple):
    """The least that one call of an op does."""

    flops: float
    """Arithmetic operations."""
    bytes: float
    """Bytes read from and written to device memory."""
    dtype: str
    """Name of the dtype that it calculates in: a key of a chip's `peak_tflops`, such as `bf16` or `int8`."""


def work_of(op: str, *args: Any, **kwargs: Any) -> Work:
    """Return the work of the op called `op` for these arguments, which are those of its reference.

    Quantised weights come in the layout that all chips share, not in one that an implementation packed for itself.
    Raises KeyError for an op that has no formula here.
    """
    return FORMULAS[op](*args, **kwargs)


def embedding(ids_T: TensorLike, weight_VE: TensorLike) -> Work:
    """No operation; T ids, and T rows of E read and written."""
    row = weight_VE.shape[1] * item_bytes(weight_VE)
    return Work(0, nbytes(ids_T) + 2 * ids_T.shape[0] * row, dtype_of(weight_VE))


def linear(x_TE: TensorLike, weight_OE: TensorLike, bias_O: TensorLike | None) -> Work:
    """2TEO operations, and TO with a bias; x, W and b read, y written."""
    return _product(x_TE, weight_OE.shape, nbytes(weight_OE), bias_O, dtype_of(x_TE))


def linear_w8a8(x_TE: TensorLike, weight: MatrixLike, bias_O: TensorLike | None) -> Work:
    """As `linear`, in int8, with the weight as it is stored."""
    return _product(x_TE, weight.shape, weight.nbytes, bias_O, "int8")


def linear_w8a16(x_TE: TensorLike, weight: MatrixLike, bias_O: TensorLike | None) -> Work:
    """As `linear`, in the dtype of x, with the weight as it is stored."""
    return _product(x_TE, weight.shape, weight.nbytes, bias_O, dtype_of(x_TE))


def linear_fp8(x_TE: TensorLike, weight: MatrixLike, bias_O: TensorLike | None) -> Work:
    """As `linear`, in 8-bit floats, with the weight as it is stored."""
    return _product(x_TE, weight.shape, weight.nbytes, bias_O, "fp8")


def rms_norm(x_TE: TensorLike, weight_E: TensorLike, eps: float) -> Work:
    """4 operations a value (square, sum, scale, weight), of x with any number of axes; x and w read, y written."""
    return Work(4 * prod(x_TE.shape), 2 * nbytes(x_TE) + nbytes(weight_E), dtype_of(x_TE))


def add_rms_norm(x_TE: TensorLike, residual_TE: TensorLike, weight_E: TensorLike, eps: float) -> Work:
    """5 operations a value; x, residual and w read, norm and sum written."""
    return Work(5 * prod(x_TE.shape), 4 * nbytes(x_TE) + nbytes(weight_E), dtype_of(x_TE))


def rope(x_TND: TensorLike, cos_TD: TensorLike, sin_TD: TensorLike) -> Work:
    """3 operations a value; x, cos and sin read, y written."""
    return Work(3 * prod(x_TND.shape), 2 * nbytes(x_TND) + nbytes(cos_TD, sin_TD), dtype_of(x_TND))


def silu_and_mul(x_T2F: TensorLike) -> Work:
    """5 operations per result (negate, exp, add, divide, multiply); 2F values of each row read, F written."""
    return Work(5 * prod(x_T2F.shape) // 2, 3 * nbytes(x_T2F) // 2, dtype_of(x_T2F))


def store_kv(
    k_TKD: TensorLike,
    v_TKD: TensorLike,
    k_pool_SKD: TensorLike,
    v_pool_SKD: TensorLike,
    slots_T: TensorLike,
    scales: object | None = None,
) -> Work:
    """T keys and values read in their dtype and written in the pool's, with 2TK fp32 scales in an int8 pool.

    Rounding to int8 takes 4 operations a value (absolute, maximum, divide, round); another dtype none.
    """
    tokens, heads, width = k_TKD.shape
    values = 2 * tokens * heads * width
    scale_bytes = 2 * tokens * heads * FP32_BYTES if scales is not None else 0
    moved = nbytes(k_TKD, v_TKD, slots_T) + values * item_bytes(k_pool_SKD) + scale_bytes
    return Work(4 * values if scales is not None else 0, moved, dtype_of(k_TKD))


def attention(
    q_THD: TensorLike,
    k_pool_SKD: TensorLike,
    v_pool_SKD: TensorLike,
    rows: RowsLike,
    scale: float,
    scales: object | None = None,
) -> Work:
    """4HD operations (q k, and p v) for each pair of a query and a token that it sees.

    Bytes: q read and the result written; of each row, the keys and values of every token that any of its queries sees,
    read once in the pool's dtype, with 2K fp32 scales a token in an int8 pool.
    """
    return attention_of(q_THD, k_pool_SKD, visible_pairs(rows), visible_tokens(rows), scales)


def attention_of(
    q_THD: TensorLike, k_pool_SKD: TensorLike, pairs: int, tokens: int, scales: object | None = None
) -> Work:
    """As `attention`, of rows with so many visible pairs and tokens."""
    heads, width = q_THD.shape[1:]
    kv_heads = k_pool_SKD.shape[1]
    token = 2 * kv_heads * (width * item_bytes(k_pool_SKD) + (FP32_BYTES if scales is not None else 0))
    return Work(4 * pairs * heads * width, 2 * nbytes(q_THD) + tokens * token, dtype_of(q_THD))


def route(logits_TX: TensorLike, top_k: int, renormalise: bool) -> Work:
    """6TX operations (softmax 5, choice 1), and 2TC to renormalise; logits read, fp32 weights and int64 ids written."""
    tokens = logits_TX.shape[0]
    flops = 6 * prod(logits_TX.shape) + (2 * tokens * top_k if renormalise else 0)
    return Work(flops, nbytes(logits_TX) + tokens * top_k * (FP32_BYTES + EXPERT_ID_BYTES), dtype_of(logits_TX))


def route_grouped(
    logits_TX: TensorLike,
    bias_X: TensorLike | None,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: str,
    renormalise: bool,
) -> Work:
    """As `route`, with TX more operations to choose among groups, and TX with a bias, which is read."""
    plain = route(logits_TX, top_k, renormalise)
    passes = 1 if bias_X is None else 2
    return Work(plain.flops + passes * prod(logits_TX.shape), plain.bytes + nbytes(bias_X), plain.dtype)


def run_experts(
    x_TE: TensorLike, gate_up_X2FE: TensorLike, down_XEF: TensorLike, weights_TC: TensorLike, ids_TC: TensorLike
) -> Work:
    """6EF operations for each of TC visits, 5F to activate and 2E to add up.

    Of the weights those of the visited experts are read, each once: see `visited_experts`.
    """
    experts, width = down_XEF.shape[0], down_XEF.shape[2]
    stored = nbytes(gate_up_X2FE, down_XEF)
    return _experts(x_TE, width, experts, stored, weights_TC, ids_TC, dtype_of(x_TE))


def run_quantised_experts(
    x_TE: TensorLike,
    gate_up: MatrixLike,
    down: MatrixLike,
    weights_TC: TensorLike,
    ids_TC: TensorLike,
    experts: int,
    scheme: str,
) -> Work:
    """As `run_experts`, with the weights as they are stored, in what `scheme` multiplies in."""
    stored = gate_up.nbytes + down.nbytes
    arithmetic = SCHEME_ARITHMETIC.get(scheme, dtype_of(x_TE))
    return _experts(x_TE, down.shape[1], experts, stored, weights_TC, ids_TC, arithmetic)


def add_gated(x_TE: TensorLike, gate_T1: TensorLike, y_TE: TensorLike) -> Work:
    """2TE operations, and 4T for the sigmoid; x, gate and y read, the sum written."""
    flops = 2 * prod(x_TE.shape) + 4 * x_TE.shape[0]
    return Work(flops, nbytes(x_TE, gate_T1, y_TE) + nbytes(x_TE), dtype_of(x_TE))


def greedy(logits_BV: TensorLike) -> Work:
    """One comparison a logit; logits read, B logits and int64 ids written."""
    rows = logits_BV.shape[0]
    return Work(prod(logits_BV.shape), nbytes(logits_BV) + rows * (item_bytes(logits_BV) + 8), dtype_of(logits_BV))


def sample(
    logits_BV: TensorLike,
    temperature_B: TensorLike,
    top_k_B: TensorLike,
    top_p_B: TensorLike,
    min_p_B: TensorLike,
    uniform_B: TensorLike,
) -> Work:
    """8 operations a logit (softmax 5, cuts 2, running sum 1); logits and parameters read, B int64 ids written.

    The cuts need no sort: one threshold a row is enough.
    """
    parameters = nbytes(temperature_B, top_k_B, top_p_B, min_p_B, uniform_B)
    moved = nbytes(logits_BV) + parameters + 8 * logits_BV.shape[0]
    return Work(8 * prod(logits_BV.shape), moved, dtype_of(logits_BV))


def adjust_logits(
    logits_BV: TensorLike, rows_N: TensorLike, ids_N: TensorLike, factors_N: TensorLike, offsets_N: TensorLike
) -> Work:
    """3N operations; the N logits read and written, and what says how."""
    count = rows_N.shape[0]
    moved = 2 * count * item_bytes(logits_BV) + nbytes(rows_N, ids_N, factors_N, offsets_N)
    return Work(3 * count, moved, dtype_of(logits_BV))


def mask_logits(logits_BV: TensorLike, rows_M: TensorLike, words_MW: TensorLike) -> Work:
    """One operation a logit of a masked row; masks read, the rows' MV logits written."""
    logits = rows_M.shape[0] * logits_BV.shape[1]
    return Work(logits, nbytes(rows_M, words_MW) + logits * item_bytes(logits_BV), dtype_of(logits_BV))


def token_logprobs(logits_BV: TensorLike, ids_B: TensorLike, count: int) -> Work:
    """5 operations a logit (maximum, subtract, exp, add, compare).

    Bytes: logits and ids read, an fp32 logprob a row and `count` more with int64 ids written.
    """
    moved = nbytes(logits_BV, ids_B) + logits_BV.shape[0] * (FP32_BYTES + count * (FP32_BYTES + 8))
    return Work(5 * prod(logits_BV.shape), moved, dtype_of(logits_BV))


def visible_pairs(rows: RowsLike) -> int:
    """Return how many pairs of a query and a token that it sees there are.

    A query at position p sees min(p + 1, window) tokens, and the q queries of a row are at its last q positions.
    """
    queries_B, lens_B = rows.query_lens_B, rows.kv_lens_B
    if rows.window is None:
        return int((queries_B * lens_B - queries_B * (queries_B - 1) // 2).sum())
    full_B = (lens_B - rows.window + 1).clip(0, queries_B)
    rest_B = queries_B - full_B
    return int((full_B * rows.window + rest_B * (lens_B - full_B) - rest_B * (rest_B - 1) // 2).sum())


def visible_tokens(rows: RowsLike) -> int:
    """Return how many tokens are seen by some query of their row, all rows together."""
    if rows.window is None:
        return int(rows.kv_lens_B.sum())
    return int(rows.kv_lens_B.clip(max=rows.query_lens_B + rows.window - 1).sum())


def visited_experts(tokens: int, experts: int, top_k: int) -> float:
    """Return how many of `experts` are visited by `tokens` tokens that choose `top_k` each, all equally likely.

    X (1 - (1 - C/X)^T): the expected number of occupied cells. What the ids really say is not looked at, so that a
    number need not be fetched from the device, or exist.
    """
    return experts * float(1 - (1 - top_k / experts) ** tokens)


def allreduce_bytes(size: int, ranks: int) -> float:
    """Return what each of `ranks` sends, and receives, to add up `size` bytes: 2 (n - 1) / n of them.

    The least that any algorithm needs (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters
    of workstations").
    """
    return 2 * (ranks - 1) / ranks * size


FORMULAS: dict[str, Callable[..., Work]] = {
    "add_gated": add_gated,
    "add_rms_norm": add_rms_norm,
    "adjust_logits": adjust_logits,
    "attention_decode": attention,
    "attention_prefill": attention,
    "embedding": embedding,
    "greedy": greedy,
    "linear": linear,
    "linear_fp8": linear_fp8,
    "linear_w4a16": linear_w8a16,
    "linear_w8a16": linear_w8a16,
    "linear_w8a8": linear_w8a8,
    "mask_logits": mask_logits,
    "rms_norm": rms_norm,
    "rope": rope,
    "route": route,
    "route_grouped": route_grouped,
    "run_experts": run_experts,
    "run_quantised_experts": run_quantised_experts,
    "sample": sample,
    "silu_and_mul": silu_and_mul,
    "store_kv": store_kv,
    "token_logprobs": token_logprobs,
}
"""The formula of every op of the seam."""


def _product(
    x_TE: TensorLike, weight_shape: tuple[int, ...], weight_bytes: int, bias_O: TensorLike | None, arithmetic: str
) -> Work:
    tokens, (outputs, inputs) = prod(x_TE.shape[:-1]), weight_shape
    added = tokens * outputs if bias_O is not None else 0
    moved = nbytes(x_TE, bias_O) + weight_bytes + tokens * outputs * item_bytes(x_TE)
    return Work(2 * tokens * inputs * outputs + added, moved, arithmetic)


def _experts(
    x_TE: TensorLike,
    width: int,
    experts: int,
    stored: int,
    weights_TC: TensorLike,
    ids_TC: TensorLike,
    arithmetic: str,
) -> Work:
    (tokens, hidden), top_k = x_TE.shape, ids_TC.shape[1]
    visits = tokens * top_k
    flops = visits * (6 * hidden * width + 5 * width + 2 * hidden)
    read = stored * visited_experts(tokens, experts, top_k) / experts
    return Work(flops, 2 * nbytes(x_TE) + nbytes(weights_TC, ids_TC) + read, arithmetic)
