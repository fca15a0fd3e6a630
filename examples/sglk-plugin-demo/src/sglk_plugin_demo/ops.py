import torch
from torch.nn.functional import silu

from sglk.backends import moe_ops, reference
from sglk.backends.constraints import multiple_of, one_of


def register_ops(ops):
    ops.register(moe_ops.run_experts, "demo", run_experts, multiple_of("experts", 4))
    ops.register(reference.attention_decode, "demo", attention_decode, one_of("head_dim", 16, 32, 64, 128))


def run_experts(x_TE, gate_up_X2FE, down_XEF, weights_TC, ids_TC):
    """All experts on all tokens, four experts at a time."""
    out_TE = torch.zeros_like(x_TE)
    weights_TX = x_TE.new_zeros(len(x_TE), len(down_XEF)).scatter_(1, ids_TC, weights_TC)
    for four in torch.arange(len(down_XEF)).split(4):
        gate_4TF, up_4TF = (x_TE @ gate_up_X2FE[four].mT).chunk(2, dim=-1)
        y_4TE = silu(gate_4TF) * up_4TF @ down_XEF[four].mT
        out_TE += torch.einsum("tx,xte->te", weights_TX[:, four], y_4TE)
    return out_TE


def attention_decode(q_BHD, k_pool_SKD, v_pool_SKD, rows, scale, scales=None):
    """One query a row, all rows at once, each padded to the longest."""
    slots_BL, padding_BL = rows.slots_device_BL, rows.padding_bias_BL
    q_BKGD = q_BHD.unflatten(1, (k_pool_SKD.shape[1], -1))
    scores_BKGL = torch.einsum("bkgd,blkd->bkgl", q_BKGD, k_pool_SKD[slots_BL]) * scale + padding_BL[:, None, None]
    return torch.einsum("bkgl,blkd->bkgd", scores_BKGL.softmax(-1), v_pool_SKD[slots_BL]).flatten(1, 2)
