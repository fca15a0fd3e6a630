"""The ops that choose tokens, on the cpu: no sorting of the whole vocabulary where the likeliest ids suffice."""

import numpy as np
import torch

from sglk.backends import sampling_ops
from sglk.backends.ops import OpRegistry

CANDIDATES = (1024, 8192)
"""How many of the likeliest ids sampling looks at, one after the other, before it sorts the whole vocabulary."""


def register_cpu_sampling_ops(ops: OpRegistry, provider: str) -> None:
    """Offer every sampling op."""
    ops.register(sampling_ops.greedy, provider, sampling_ops.greedy.reference)
    ops.register(sampling_ops.sample, provider, sample)
    ops.register(sampling_ops.adjust_logits, provider, sampling_ops.adjust_logits.reference)
    ops.register(sampling_ops.mask_logits, provider, mask_logits)
    ops.register(sampling_ops.token_logprobs, provider, token_logprobs)


def token_logprobs(
    logits_BV: torch.Tensor, ids_B: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take a row that is alone twice: torch would share its sum out among threads, and round as they are many."""
    if len(logits_BV) != 1:
        return sampling_ops.token_logprobs.reference(logits_BV, ids_B, count)
    own_B, top_BC, top_ids_BC = sampling_ops.token_logprobs.reference(logits_BV.repeat(2, 1), ids_B.repeat(2), count)
    return own_B[:1], top_BC[:1], top_ids_BC[:1]


def sample(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
    uniform_B: torch.Tensor,
) -> torch.Tensor:
    """Rank only rows that top_k or top_p cut, and of these sort only such as reach beyond the likeliest ids."""
    probs_BV = sampling_ops.scaled_probs(logits_BV, temperature_B)
    vocabulary = probs_BV.shape[1]
    cut_B = ((top_k_B > 0) & (top_k_B < vocabulary)) | (top_p_B < 1.0)
    for row in cut_B.nonzero().flatten().tolist():
        probs_BV[row] = _kept(probs_BV[row : row + 1], top_k_B[row : row + 1], top_p_B[row : row + 1])[0]
    if bool((min_p_B > 0).any()):
        probs_BV = sampling_ops.drop_unlikely(probs_BV, min_p_B)
    return sampling_ops.draw(probs_BV, uniform_B)


def mask_logits(logits_BV: torch.Tensor, rows_M: torch.Tensor, words_MW: torch.Tensor) -> None:
    """Unpack the bits with numpy, which is far faster at it."""
    bits_MV = np.unpackbits(words_MW.numpy().view(np.uint8), axis=1, count=logits_BV.shape[1], bitorder="little")
    forbidden_MV = torch.from_numpy(bits_MV == 0)
    for row, forbidden_V in zip(rows_M.tolist(), forbidden_MV, strict=True):
        logits_BV[row].masked_fill_(forbidden_V, -torch.inf)


def _kept(probs_1V: torch.Tensor, top_k_1: torch.Tensor, top_p_1: torch.Tensor) -> torch.Tensor:
    vocabulary, top_k, top_p = probs_1V.shape[1], int(top_k_1), float(top_p_1)
    for count in CANDIDATES:
        ordered_1C, ids_1C = probs_1V.topk(min(count, vocabulary), dim=-1)
        if _suffices(ordered_1C, vocabulary, top_k, top_p):
            break
    else:
        ordered_1C, ids_1C = probs_1V.sort(dim=-1, descending=True, stable=True)
    return sampling_ops.keep_likeliest(probs_1V, ordered_1C, ids_1C, top_k_1, top_p_1)


def _suffices(ordered_1C: torch.Tensor, vocabulary: int, top_k: int, top_p: float) -> bool:
    """Return whether what top_k and top_p keep, and the sum that top_p is a share of, are known from the likeliest."""
    width = ordered_1C.shape[1]
    if width == vocabulary or 0 < top_k <= width:
        return True
    return top_k == 0 and top_p < float(ordered_1C.sum())
