"""Keys and values in the pool, which may be of another dtype than the model computes in.

Letters: N tokens, K key/value heads, D head width, S slots of the pool. A pool is [S, K, D], or in head-major pages
[M, K, P, D], where slot s is token s % P of page s // P.
"""

from dataclasses import dataclass

import torch

from sglk.backends.quantise import INT8_MAX

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

HEAD_MAJOR_AXES = 4


@dataclass(frozen=True, slots=True)
class KVScales:
    """What int8 keys and values of one layer are multiples of: fp32, one for every token and head."""

    keys_SK: torch.Tensor
    values_SK: torch.Tensor


def write_kv(
    x_NKD: torch.Tensor, pool_SKD: torch.Tensor, slots_N: torch.Tensor, scales_SK: torch.Tensor | None
) -> None:
    """Convert to the pool's dtype and write; each token and head on its own.

    8-bit floats saturate: torch's own conversion may make infinity or NaN of what is too large for them.
    """
    if scales_SK is not None:
        scales_NK1 = x_NKD.float().abs().amax(-1, keepdim=True).div_(INT8_MAX)
        divisors_NK1 = torch.where(scales_NK1 == 0, 1.0, scales_NK1)
        # The divisor of tiny numbers is itself rounded, by up to half.
        x_NKD = (x_NKD / divisors_NK1).round_().clamp_(-INT8_MAX, INT8_MAX)
        scales_SK.index_copy_(0, slots_N, scales_NK1.squeeze(-1))
    elif pool_SKD.dtype in FLOAT8:
        largest = torch.finfo(pool_SKD.dtype).max
        x_NKD = x_NKD.clamp(-largest, largest)
    stored_NKD = x_NKD.to(pool_SKD.dtype)
    if pool_SKD.dtype in FLOAT8:
        # Few torch builds can index 8-bit floats; as bytes all can.
        pool_SKD, stored_NKD = pool_SKD.view(torch.uint8), stored_NKD.view(torch.uint8)
    if pool_SKD.ndim == HEAD_MAJOR_AXES:
        pages_N, offsets_N = _places(pool_SKD, slots_N)
        pool_SKD[pages_N, :, offsets_N] = stored_NKD
    else:
        pool_SKD.index_copy_(0, slots_N, stored_NKD)


def read_kv(
    pool_SKD: torch.Tensor, slots_N: torch.Tensor, scales_SK: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return x_NKD of the slots in `dtype`."""
    bytes_of = pool_SKD.view(torch.uint8) if pool_SKD.dtype in FLOAT8 else pool_SKD
    if pool_SKD.ndim == HEAD_MAJOR_AXES:
        pages_N, offsets_N = _places(pool_SKD, slots_N)
        stored_NKD = bytes_of[pages_N, :, offsets_N]
    else:
        stored_NKD = bytes_of.index_select(0, slots_N)
    x_NKD = stored_NKD.view(pool_SKD.dtype).to(dtype)
    if scales_SK is None:
        return x_NKD
    return x_NKD.mul_(scales_SK.index_select(0, slots_N).unsqueeze(-1))


def read_both(
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    slots_N: torch.Tensor,
    scales: KVScales | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return k_NKD and v_NKD of the slots in `dtype`."""
    return (
        read_kv(k_pool_SKD, slots_N, scales.keys_SK if scales else None, dtype),
        read_kv(v_pool_SKD, slots_N, scales.values_SK if scales else None, dtype),
    )


def _places(pool_MKPD: torch.Tensor, slots_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return page and token of each slot."""
    page_size = pool_MKPD.shape[2]
    return slots_N // page_size, slots_N % page_size
