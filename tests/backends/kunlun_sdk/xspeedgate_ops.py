"""Stands in for a library that registers torch ops; written from how public callers call it."""

import torch

_SCHEMA = (
    "flashinfer_rotary_embedding(Tensor positions, int rotary_dim, int head_size, Tensor cos_sin_cache, "
    "bool is_neox_style, Tensor query, Tensor key, Tensor? offsets) -> (Tensor, Tensor)"
)


def _rotate(positions, rotary_dim, head_size, cos_sin_cache, is_neox_style, query, key, offsets):
    assert rotary_dim == head_size == query.shape[-1]
    assert is_neox_style
    assert offsets is None
    assert cos_sin_cache.dtype is torch.float32
    cos, sin = (part.unsqueeze(1) for part in cos_sin_cache[positions].chunk(2, dim=-1))

    def turned(x):
        left, right = x.float().chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)

    return turned(query), turned(key)


if not hasattr(torch.ops.xspeedgate_ops, "flashinfer_rotary_embedding"):
    # Tests import the library more than once in a process.
    LIBRARY = torch.library.Library("xspeedgate_ops", "DEF")
    LIBRARY.define(_SCHEMA)
    LIBRARY.impl("flashinfer_rotary_embedding", _rotate, "CPU")
