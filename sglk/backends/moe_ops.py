"""Ops of feed-forward blocks made of experts, in plain torch: the definition of correct.

Letters: T tokens, X experts, C experts chosen for a token, G groups of neighbouring experts, E hidden width, F width of
an expert, R = T * C visits. Traits: `experts`, `top_k`, `renormalise`; for grouped routing also `groups`, `top_groups`,
`scoring`; for the experts themselves `experts`, `top_k`, `hidden`, `width`.
"""

from typing import Literal

import torch
import torch.nn.functional as F

from sglk.backends import reference
from sglk.backends.ops import define_op

Scoring = Literal["softmax", "sigmoid"]


@define_op
def route(logits_TX: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights_TC (fp32) and ids_TC (int64) of each token's `top_k` likeliest experts.

    Softmax over all experts in fp32 (Shazeer et al. 2017, arXiv:1701.06538); with `renormalise` the chosen weights of
    a token are scaled to sum to 1.
    """
    weights_TC, ids_TC = logits_TX.float().softmax(-1).topk(top_k, dim=-1)
    return (weights_TC / weights_TC.sum(-1, keepdim=True) if renormalise else weights_TC), ids_TC


@define_op
def route_grouped(
    logits_TX: torch.Tensor,
    bias_X: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: Scoring,
    renormalise: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights_TC and ids_TC as `route` does, with experts of each token's `top_groups` best groups alone.

    `softmax`: a group is worth its best expert (DeepSeek-AI 2024, arXiv:2405.04434, section 2.2.2). `sigmoid`: it is
    worth its two best, scores are independent, and `bias_X` counts for the choice but not in the weights
    (arXiv:2412.19437, section 2.1.2). `groups` divides the experts.
    """
    scores_TX = logits_TX.float().softmax(-1) if scoring == "softmax" else logits_TX.float().sigmoid()
    choice_TX = scores_TX if bias_X is None else scores_TX + bias_X.float()
    members_TGX = choice_TX.reshape(len(choice_TX), groups, -1)
    # A group of one expert has no second best.
    best = 1 if scoring == "softmax" else min(2, members_TGX.shape[-1])
    worth_TG = members_TGX.topk(best, dim=-1).values.sum(-1)
    kept_TG = torch.zeros_like(worth_TG, dtype=torch.bool).scatter_(1, worth_TG.topk(top_groups, dim=-1).indices, True)
    # With a bias a score may be below 0, so what is not kept must rank below everything.
    choice_TX = members_TGX.masked_fill(~kept_TG.unsqueeze(-1), -torch.inf).flatten(1)
    ids_TC = choice_TX.topk(top_k, dim=-1).indices
    weights_TC = scores_TX.gather(1, ids_TC)
    return (weights_TC / weights_TC.sum(-1, keepdim=True) if renormalise else weights_TC), ids_TC


@define_op
def run_experts(
    x_TE: torch.Tensor,
    gate_up_X2FE: torch.Tensor,
    down_XEF: torch.Tensor,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
) -> torch.Tensor:
    """Return y_TE, the sum over a token's experts of weight * down(silu(gate(x)) * up(x)).

    Each expert runs once, on all of its tokens; the sum is kept in fp32. An expert that no token chose is not read.
    """
    out_TE = torch.zeros_like(x_TE, dtype=torch.float32)
    visits = visits_by_expert(ids_TC, len(gate_up_X2FE))
    for gate_up_2FE, down_EF, visits_R in zip(gate_up_X2FE, down_XEF, visits, strict=True):
        if not len(visits_R):
            continue
        tokens_R = visits_R // ids_TC.shape[1]
        hidden_RF = reference.silu_and_mul.reference(F.linear(x_TE[tokens_R], gate_up_2FE))
        y_RE = F.linear(hidden_RF, down_EF).float() * weights_TC.flatten()[visits_R].unsqueeze(1)
        out_TE.index_add_(0, tokens_R, y_RE)
    return out_TE.to(x_TE.dtype)


@define_op
def add_gated(x_TE: torch.Tensor, gate_T1: torch.Tensor, y_TE: torch.Tensor) -> torch.Tensor:
    """Return x + sigmoid(gate) * y."""
    return x_TE + gate_T1.sigmoid() * y_TE


def visits_by_expert(ids_TC: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    """Return per expert the indices into the flattened `ids_TC` that name it, in order."""
    counts_X = ids_TC.flatten().bincount(minlength=experts)
    return torch.split(ids_TC.flatten().argsort(stable=True), counts_X.tolist())
