"""Norms, rotary positions, SwiGLU and writes to the KV pool with own kernels. Letters as in `reference.py`."""

import torch

from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.panels import KINDS
from sglk.backends.kv_values import KVScales
from sglk.backends.rows import IntArray


class ElementwiseKernels:
    """C functions in fp32 that each do in one pass what torch needs several ops for."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def rms_norm(self, x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
        """Scale each row along the last axis."""
        width = x_TE.shape[-1]
        if x_TE.stride(-1) != 1 or x_TE.dim() not in (2, 3):
            x_TE = x_TE.contiguous()
        y_TE = self._calls.empty(*x_TE.shape)
        heads = x_TE.shape[1] if x_TE.dim() == 3 else 1
        head_stride = x_TE.stride(1) if x_TE.dim() == 3 else 0
        count, stride = (len(x_TE), x_TE.stride(0)) if x_TE.dim() in (2, 3) else (x_TE.numel() // width, width)
        self._calls(
            "rms_norm",
            x_TE.data_ptr(),
            stride,
            head_stride,
            weight_E.data_ptr(),
            eps,
            count,
            heads,
            width,
            y_TE.data_ptr(),
            self._calls.threads,
        )
        return y_TE

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add in place and normalise, row after row."""
        x_TE, total_TE = x_TE.contiguous(), residual_TE.contiguous()
        y_TE = self._calls.empty(*x_TE.shape)
        width = x_TE.shape[-1]
        self._calls(
            "add_rms_norm",
            x_TE.data_ptr(),
            total_TE.data_ptr(),
            weight_E.data_ptr(),
            eps,
            x_TE.numel() // width,
            width,
            y_TE.data_ptr(),
            self._calls.threads,
        )
        return y_TE, total_TE

    def rope(self, x_TND: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
        """Rotate both halves of a head at once."""
        if x_TND.stride(2) != 1:
            x_TND = x_TND.contiguous()
        tokens, heads, width = x_TND.shape
        y_TND = self._calls.empty(tokens, heads, width)
        cos_TD, sin_TD = cos_TD.contiguous(), sin_TD.contiguous()
        self._calls(
            "rope",
            x_TND.data_ptr(),
            x_TND.stride(0),
            x_TND.stride(1),
            cos_TD.data_ptr(),
            sin_TD.data_ptr(),
            tokens,
            heads,
            width,
            y_TND.data_ptr(),
            self._calls.threads,
        )
        return y_TND

    def silu_and_mul(self, x_T2F: torch.Tensor) -> torch.Tensor:
        """Return y_TF."""
        if x_T2F.stride(1) != 1:
            x_T2F = x_T2F.contiguous()
        tokens, width = x_T2F.shape[0], x_T2F.shape[1] // 2
        y_TF = self._calls.empty(tokens, width)
        self._calls(
            "silu_and_mul", x_T2F.data_ptr(), x_T2F.stride(0), tokens, width, y_TF.data_ptr(), self._calls.threads
        )
        return y_TF

    def add_gated(self, x_TE: torch.Tensor, gate_T1: torch.Tensor, y_TE: torch.Tensor) -> torch.Tensor:
        """Return x + sigmoid(gate) * y."""
        x_TE, gate_T1, y_TE = x_TE.contiguous(), gate_T1.contiguous(), y_TE.contiguous()
        sum_TE = self._calls.empty(*x_TE.shape)
        pointers = (x_TE.data_ptr(), gate_T1.data_ptr(), y_TE.data_ptr())
        self._calls("add_gated", *pointers, *x_TE.shape, sum_TE.data_ptr(), self._calls.threads)
        return sum_TE

    def weighted_sum(self, x_RE: torch.Tensor, places_TC: IntArray, weights_TC: torch.Tensor) -> torch.Tensor:
        """Return y_TE: per token the sum over c of its weight times the row of x at its place."""
        weights_TC = weights_TC.contiguous()
        tokens, chosen = places_TC.shape
        y_TE = self._calls.empty(tokens, x_RE.shape[1])
        pointers = (x_RE.data_ptr(), places_TC.ctypes.data, weights_TC.data_ptr())
        sizes = (tokens, chosen, x_RE.shape[1])
        self._calls("weighted_sum", *pointers, *sizes, y_TE.data_ptr(), self._calls.threads)
        return y_TE

    def store_kv(
        self,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        k_pool_SKD: torch.Tensor,
        v_pool_SKD: torch.Tensor,
        slots_T: torch.Tensor,
        scales: KVScales | None = None,
    ) -> None:
        """Convert and write keys and values, each token and head on its own."""
        tokens, heads, width = k_TKD.shape
        if k_TKD.stride()[1:] != (width, 1):
            k_TKD = k_TKD.contiguous()
        if v_TKD.stride()[1:] != (width, 1):
            v_TKD = v_TKD.contiguous()
        self._calls(
            "store_kv",
            KINDS[k_pool_SKD.dtype],
            k_TKD.data_ptr(),
            k_TKD.stride(0),
            v_TKD.data_ptr(),
            v_TKD.stride(0),
            k_pool_SKD.data_ptr(),
            v_pool_SKD.data_ptr(),
            None if scales is None else scales.keys_SK.data_ptr(),
            None if scales is None else scales.values_SK.data_ptr(),
            slots_T.data_ptr(),
            tokens,
            heads,
            width,
        )
