"""The ops that choose tokens, in plain torch: the definition of correct.

Letters: B rows, V vocabulary, C likeliest ids, N single logits, M rows with a mask, W words of a mask.
"""

import torch

from sglk.backends.ops import define_op


@define_op
def greedy(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the highest logit of each row and its id, the lowest id among equals; a NaN counts as highest."""
    best_B, ids_B = logits_BV.max(dim=-1)
    return best_B, ids_B


@define_op
def sample(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
    uniform_B: torch.Tensor,
) -> torch.Tensor:
    """Draw one id per row by inverting the distribution function, in order of id, at `uniform_B` in [0, 1).

    The distribution is softmax(logits / temperature) cut to the `top_k` likeliest ids (0 = all), renormalised, then
    cut to the smallest set of likeliest ids that holds `top_p` of it (Holtzman et al. 2020, arXiv:1904.09751), then
    rid of ids below `min_p` of the likeliest one (Nguyen et al. 2024, arXiv:2407.01082).
    Temperatures are above 0; each row's draw is a function of that row alone.
    """
    probs_BV = scaled_probs(logits_BV, temperature_B)
    ordered_BV, ids_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    kept_BV = keep_likeliest(probs_BV, ordered_BV, ids_BV, top_k_B, top_p_B)
    return draw(drop_unlikely(kept_BV, min_p_B), uniform_B)


@define_op
def adjust_logits(
    logits_BV: torch.Tensor, rows_N: torch.Tensor, ids_N: torch.Tensor, factors_N: torch.Tensor, offsets_N: torch.Tensor
) -> None:
    """Shrink single logits by a factor and add an offset, in place; no pair of row and id comes twice.

    A positive logit is divided by its factor, a negative one multiplied (Keskar et al. 2019, arXiv:1909.05858).
    """
    chosen_N = logits_BV[rows_N, ids_N].float()
    shrunk_N = torch.where(chosen_N > 0, chosen_N / factors_N, chosen_N * factors_N) + offsets_N
    # A tiny factor must not make an infinity of a number.
    logits_BV[rows_N, ids_N] = shrunk_N.clamp(max=torch.finfo(logits_BV.dtype).max).to(logits_BV.dtype)


@define_op
def mask_logits(logits_BV: torch.Tensor, rows_M: torch.Tensor, words_MW: torch.Tensor) -> None:
    """Set the logits of `rows_M` to -inf, in place, except where a bit of the row's mask is set.

    A mask is 32 bits a word, the lowest bit of the first word for id 0.
    """
    bits_32 = torch.arange(32, device=words_MW.device, dtype=torch.int32)
    allowed_MV = (words_MW.unsqueeze(-1) >> bits_32 & 1).flatten(1)[:, : logits_BV.shape[1]].bool()
    logits_BV[rows_M] = logits_BV[rows_M].masked_fill(~allowed_MV, -torch.inf)


@define_op
def token_logprobs(
    logits_BV: torch.Tensor, ids_B: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log softmax(logits) in fp32 at `ids_B`, and its `count` highest values of each row with their ids.

    Of equals the lower ids come first, so that a row's first few are the same whatever `count` its neighbours want.
    """
    logits_BV = logits_BV.float()
    normaliser_B1 = logits_BV.logsumexp(-1, keepdim=True)
    top_ids_BC = likeliest_ids(logits_BV, count)
    top_BC = logits_BV.gather(1, top_ids_BC)
    return (logits_BV.gather(1, ids_B.unsqueeze(1)) - normaliser_B1).squeeze(1), top_BC - normaliser_B1, top_ids_BC


def likeliest_ids(logits_BV: torch.Tensor, count: int) -> torch.Tensor:
    """Return ids_BC of the `count` highest logits of each row from the highest on, of equals the lower ids first.

    16 bits make equals often, and which of them `topk` takes depends on how many it is asked for.
    """
    vocabulary = logits_BV.shape[1]
    if count == 0:
        return logits_BV.new_empty(len(logits_BV), 0, dtype=torch.int64)
    least_B1 = logits_BV.topk(count, dim=-1).values[:, -1:]
    left_V = torch.arange(vocabulary, 0, -1, dtype=torch.int32, device=logits_BV.device)
    # No two ids have the same rank: those above the last place, then those at it, each from the lowest id on.
    ranks_BV = torch.where(logits_BV == least_B1, left_V, 0) + torch.where(logits_BV > least_B1, left_V + vocabulary, 0)
    ids_BC = ranks_BV.topk(count, dim=-1).indices
    order_BC = logits_BV.gather(1, ids_BC).argsort(dim=-1, descending=True, stable=True)
    return ids_BC.gather(1, order_BC)


def scaled_probs(logits_BV: torch.Tensor, temperature_B: torch.Tensor) -> torch.Tensor:
    """Return softmax(logits / temperature) in fp32; the highest logit is taken off first, so nothing overflows."""
    logits_BV = logits_BV.float()
    return ((logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature_B.unsqueeze(1)).softmax(-1)


def keep_likeliest(
    probs_BV: torch.Tensor, ordered_BC: torch.Tensor, ids_BC: torch.Tensor, top_k_B: torch.Tensor, top_p_B: torch.Tensor
) -> torch.Tensor:
    """Return `probs_BV` with 0 for all ids but those that top_k and top_p keep.

    `ordered_BC` are the C highest probabilities of each row from the highest on, `ids_BC` their ids.
    """
    ranks_C = torch.arange(ids_BC.shape[1], device=ids_BC.device)
    limited_B1 = (top_k_B > 0).unsqueeze(1)
    ordered_BC = ordered_BC.masked_fill(limited_B1 & (ranks_C >= top_k_B.unsqueeze(1)), 0.0)
    before_BC = ordered_BC.cumsum(-1) - ordered_BC
    total_B1 = torch.where(limited_B1, ordered_BC.sum(-1, keepdim=True), 1.0)
    # The id that crosses top_p belongs to the set, so an id stays when the sum before it is below. The first stays
    # always: the sum before it is 0, which the smallest top_p may come to in fp32 too.
    crossed_BC = (before_BC >= total_B1 * top_p_B.unsqueeze(1)) & (before_BC > 0)
    dropped_BC = crossed_BC & (top_p_B < 1.0).unsqueeze(1)
    return torch.zeros_like(probs_BV).scatter_(1, ids_BC, ordered_BC.masked_fill(dropped_BC, 0.0))


def drop_unlikely(probs_BV: torch.Tensor, min_p_B: torch.Tensor) -> torch.Tensor:
    """Return `probs_BV` with 0 for ids whose probability is below `min_p` of the row's highest."""
    return probs_BV.masked_fill(probs_BV < probs_BV.amax(-1, keepdim=True) * min_p_B.unsqueeze(1), 0.0)


def draw(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Return per row the first id at which the running sum of `probs_BV` exceeds `uniform_B` of the row's sum."""
    cumulative_BV = probs_BV.cumsum(-1)
    total_B1 = cumulative_BV[:, -1:]
    # Rounding must not lift the target to the sum itself, which no id exceeds.
    target_B1 = torch.minimum(uniform_B.unsqueeze(1) * total_B1, total_B1.nextafter(torch.zeros_like(total_B1)))
    return torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(1)
