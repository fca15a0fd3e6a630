"""Stands in for the vendor's op library, in plain torch on the cpu; written from how public callers call it."""

import torch

calls = []
"""Names of the functions in the order of their calls."""


def rmsnorm(x, weight, output, eps, interleaved=False, store=True):
    calls.append("rmsnorm")
    assert x.is_contiguous()
    scaled = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    output.copy_(weight * scaled.to(x.dtype))


def add_rmsnorm(x, residual, weight, output, eps, residual_output=None):
    total = x + residual
    rmsnorm(total, weight, output, eps)
    residual_output.copy_(total)


def swiglu(x, y, limit=None):
    calls.append("swiglu")
    assert x.shape[-1] * x.element_size() % 16 == 0
    gate, up = x.chunk(2, dim=-1)
    y.copy_(torch.nn.functional.silu(gate) * up)


def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, k_max=None, v_max=None, quant_mode=0):
    calls.append("reshape_and_cache")
    assert slot_mapping.dtype is torch.int32
    size = key_cache.shape[2]
    for new, cache in ((key, key_cache), (value, value_cache)):
        assert new.is_contiguous()
        for token, slot in enumerate(slot_mapping.tolist()):
            cache[slot // size, :, slot % size] = new[token]


def prefill_attention(
    q,
    k,
    v,
    out,
    is_causal=True,
    is_prefix_cache=False,
    block_table=None,
    context_qlen_lod_cpu=None,
    context_qlen_lod_xpu=None,
    context_kvlen_lod_cpu=None,
    context_kvlen_lod_xpu=None,
    alibi_slopes=None,
    softmax_lse=None,
    swa_left=-1,
    swa_right=-1,
    sink=None,
):
    calls.append("prefill_attention")
    assert is_causal
    assert is_prefix_cache
    assert torch.equal(context_qlen_lod_cpu, context_qlen_lod_xpu)
    assert torch.equal(context_kvlen_lod_cpu, context_kvlen_lod_xpu)
    starts, lengths = context_qlen_lod_cpu.tolist(), context_kvlen_lod_cpu.diff().tolist()
    for row, length in enumerate(lengths):
        queries = slice(starts[row], starts[row + 1])
        out[queries] = _attend(q[queries], k, v, block_table[row], length, q.shape[-1] ** -0.5)


def speculative_attention(
    out,
    q,
    k_cache,
    v_cache,
    context_lens_cpu,
    context_lens_xpu,
    batch_num,
    qlen,
    max_context_len,
    head_num,
    head_dim,
    scale,
    kv_head_num,
    block_size,
    max_num_blocks_per_seq,
    block_tables,
    max_window_size=-1,
    sink=None,
):
    calls.append("speculative_attention")
    assert q.shape == out.shape == (batch_num, qlen, head_num, head_dim)
    assert k_cache.shape[1:] == (kv_head_num, block_size, head_dim)
    assert block_tables.shape == (batch_num, max_num_blocks_per_seq)
    assert block_tables.dtype is context_lens_cpu.dtype is context_lens_xpu.dtype is torch.int32
    for row, length in enumerate(context_lens_cpu.tolist()):
        assert length <= max_context_len
        out[row] = _attend(q[row], k_cache, v_cache, block_tables[row], length, scale)


def _attend(q, k_pages, v_pages, pages, length, scale):
    """Attend with the last queries of a row, whose pages are [heads, tokens, width] each."""
    k, v = (torch.cat([cache[page].float() for page in pages], dim=1)[:, :length] for cache in (k_pages, v_pages))
    group = q.shape[1] // k.shape[0]
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    scores = q.float().transpose(0, 1) @ k.transpose(1, 2) * scale
    unseen = torch.ones(len(q), length, dtype=torch.bool).triu(length - len(q) + 1)
    return (scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v).transpose(0, 1).to(q.dtype)


def moe_softmax_topk_norm(x, normed_score, topk_index, block_statistic, stable=False):
    calls.append("moe_softmax_topk_norm")
    weights, ids = x.softmax(-1).topk(topk_index.shape[1], dim=-1)
    normed_score.copy_(weights / weights.sum(-1, keepdim=True))
    topk_index.copy_(ids)


def moe_sigmoid_group_topk_norm(x, topk_index, norm_score, block_static, bias, scale, n_group, topk_group):
    calls.append("moe_sigmoid_group_topk_norm")
    assert block_static.shape == (12, x.shape[1])
    scores = x.sigmoid()
    groups = (scores + bias).view(len(x), n_group, -1)
    kept = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1).topk(topk_group, dim=-1).indices
    masked = torch.full_like(groups, -torch.inf)
    index = kept.unsqueeze(-1).expand(-1, -1, groups.shape[-1])
    masked.scatter_(1, index, groups.gather(1, index))
    ids = masked.flatten(1).topk(topk_index.shape[1], dim=-1).indices
    weights = scores.gather(1, ids)
    norm_score.copy_(weights / weights.sum(-1, keepdim=True) * scale)
    topk_index.copy_(ids)


def gen_block_statistic(topk_ids, block_statistic):
    assert topk_ids.dtype is torch.int32
    block_statistic[0].copy_(topk_ids.flatten().long().bincount(minlength=block_statistic.shape[1]))


def moe_pre_sorted(x, topk_index, block_statistic, moe_expand, moe_index, expert_m, sorted_tokens_num_lod):
    calls.append("moe_pre_sorted")
    assert torch.equal(block_statistic.sum(0), topk_index.flatten().long().bincount(minlength=len(expert_m)))
    order = topk_index.flatten().argsort(stable=True)
    moe_expand.copy_(x[order // topk_index.shape[1]])
    moe_index.copy_(order.argsort())
    expert_m.copy_(block_statistic.sum(0))
    sorted_tokens_num_lod[1:].copy_(expert_m.cumsum(0))


def moe_fc(
    x,
    weight,
    sorted_tokens_num_lod,
    sorted_tokens_idx,
    moe_topk,
    y,
    topk_ids=None,
    x_perchannel_max=None,
    w_perchannel_max=None,
    act=None,
):
    calls.append("moe_fc")
    assert act is None
    flat = y.view(len(x), -1)
    ends = sorted_tokens_num_lod.tolist()
    for expert in range(len(weight)):
        rows = slice(ends[expert], ends[expert + 1])
        product = x[rows].float() @ weight[expert].float().t()
        if x_perchannel_max is not None:
            product = product * x_perchannel_max[rows] * w_perchannel_max[expert] / 127 / 127
        flat[rows] = product.to(y.dtype)


def moe_post(x, moe_index, normed_scale, dequant_scale, y):
    calls.append("moe_post")
    assert normed_scale.dtype is dequant_scale.dtype is torch.float32
    copies = x.flatten(0, 1)[moe_index.long()].float()
    y.copy_((copies * (normed_scale * dequant_scale).unsqueeze(-1)).sum(1))


def quant2d(x, y, y_max, force_sdnn=False):
    calls.append("quant2d")
    largest = x.float().abs().amax(-1)
    y_max.copy_(largest)
    y.copy_((x.float() * 127 / largest.clamp(min=1e-30).unsqueeze(-1)).round())


def matmul(x, w, y, bias=None, x_pc_max=None, w_pc_max=None):
    calls.append("matmul")
    product = (x.float() @ w.float().t()) * x_pc_max.unsqueeze(-1) * w_pc_max / 127 / 127
    y.copy_(product if bias is None else product + bias)


def top_k_renorm_probs(probs, top_ks):
    calls.append("top_k_renorm_probs")
    kept = torch.zeros_like(probs)
    for row, count in enumerate(top_ks.tolist()):
        values, ids = probs[row].topk(count if count > 0 else probs.shape[1])
        kept[row, ids] = values
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_probs(probs, top_ps):
    calls.append("top_p_renorm_probs")
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    dropped = (ordered.cumsum(-1) - ordered) >= top_ps.unsqueeze(-1)
    kept = torch.zeros_like(probs).scatter_(1, ids, ordered.masked_fill(dropped, 0.0))
    return kept / kept.sum(-1, keepdim=True)
