"""Decode attention with an own kernel. Letters: B rows, H query heads, K key/value heads, D head width, S slots."""

import ctypes

import numpy as np
import torch

from sglk.backends.cpu_kernels.panels import KINDS
from sglk.backends.kv_values import KVScales
from sglk.backends.rows import PagedRows

PART = 512
"""Tokens that are summed on their own, as in the C source."""
WIDEST = 256


class AttentionKernel:
    """The C function over a paged pool: no keys or values are gathered or copied."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._decode = library.sglk_attention_decode
        self._decode.restype = None
        self._decode.argtypes = [
            *(number, pointer, size, pointer, pointer, pointer, pointer, pointer, size, size, pointer, pointer),
            *(size, size, size, size, ctypes.c_float, pointer, pointer, size, number),
        ]

    def decode(
        self,
        q_BHD: torch.Tensor,
        k_pool_SKD: torch.Tensor,
        v_pool_SKD: torch.Tensor,
        rows: PagedRows,
        scale: float,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Return out_BHD."""
        batch, heads, width = q_BHD.shape
        if q_BHD.stride()[1:] != (width, 1):
            q_BHD = q_BHD.contiguous()
        out_BHD = torch.empty(batch, heads, width)
        parts = -(-int(rows.visible_lens_B.max(initial=1)) // PART)
        states = torch.empty(batch * parts * heads * (width + 2))
        table_BP = np.ascontiguousarray(rows.page_table_BP)
        first_B, lens_B = np.ascontiguousarray(rows.first_visible_B), np.ascontiguousarray(rows.kv_lens_B)
        self._decode(
            KINDS[k_pool_SKD.dtype],
            q_BHD.data_ptr(),
            q_BHD.stride(0),
            k_pool_SKD.data_ptr(),
            v_pool_SKD.data_ptr(),
            None if scales is None else scales.keys_SK.data_ptr(),
            None if scales is None else scales.values_SK.data_ptr(),
            table_BP.ctypes.data,
            table_BP.shape[1],
            rows.page_size,
            first_B.ctypes.data,
            lens_B.ctypes.data,
            batch,
            heads,
            k_pool_SKD.shape[1],
            width,
            scale,
            out_BHD.data_ptr(),
            states.data_ptr(),
            parts,
            torch.get_num_threads(),
        )
        return out_BHD
