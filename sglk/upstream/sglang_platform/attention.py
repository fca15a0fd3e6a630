"""SGLang's attention over the ops of sglk's cpu backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

from sglk.attention.paged import AttentionOp
from sglk.backends import reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.dtypes import dtype_name
from sglk.backends.ops import Op
from sglk.backends.rows import PagedRows
from sglk.upstream.sglang_platform import NAME

_PLAIN_KV = (torch.float32, torch.bfloat16, torch.float16)


class SglkAttention(AttentionBackend):  # type: ignore[misc]
    """Stores keys and values in SGLang's pool and attends to them. T tokens, B requests, H heads, D head width."""

    def __init__(self, model_runner: Any) -> None:
        """Raise ValueError for a KV dtype whose scales SGLang keeps in a way of its own."""
        super().__init__()
        self._pool = model_runner.token_to_kv_pool
        self._req_to_token = model_runner.req_to_token_pool.req_to_token
        self._backend = CpuBackend(num_threads=torch.get_num_threads(), fallback="allow")
        self._rows: dict[int | None, PagedRows] = {}
        if model_runner.kv_cache_dtype not in _PLAIN_KV:
            raise ValueError(f"{NAME} attends to KV caches of 16 or 32 bits; start with --kv-cache-dtype auto")

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Lay the rows of a step out once for all its layers."""
        kv_lens_B = forward_batch.seq_lens.numpy().astype(np.int64)
        if forward_batch.forward_mode.is_decode_or_idle():
            query_lens_B = np.ones_like(kv_lens_B)
        else:
            query_lens_B = forward_batch.extend_seq_lens.numpy().astype(np.int64)
        slots_BP = self._req_to_token[forward_batch.req_pool_indices, : int(kv_lens_B.max(initial=0))]
        # The slots of a request are listed one by one, so each is a page of its own here.
        table_BP = slots_BP.numpy().astype(np.int64)
        inside_BP = np.arange(table_BP.shape[1]) < kv_lens_B[:, None]
        self._table_BP = np.where(inside_BP, table_BP, table_BP[:, :1])
        self._query_lens_B, self._kv_lens_B = query_lens_B, kv_lens_B
        self._rows = {}

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of a request that is none; there are no graphs on a CPU."""
        return 1

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> torch.Tensor:
        """Attend with the new tokens of each request, the last ones of those it has: out [T, H * D]."""
        return self._attend(reference.attention_prefill, q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> torch.Tensor:
        """Attend with the last token of each request: out [B, H * D]."""
        return self._attend(reference.attention_decode, q, k, v, layer, forward_batch, save_kv_cache)

    def support_triton(self) -> bool:
        """Say that this needs no Triton."""
        return False

    def _attend(
        self,
        op: Op[..., torch.Tensor],
        q: torch.Tensor,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
    ) -> torch.Tensor:
        _check(layer)
        keys_SKD = self._pool.get_key_buffer(layer.layer_id)
        values_SKD = self._pool.get_value_buffer(layer.layer_id)
        q_THD = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        traits = {
            "head_dim": layer.qk_head_dim,
            "kv_heads": layer.tp_k_head_num,
            "kv_dtype": dtype_name(keys_SKD.dtype),
            "dtype": dtype_name(q.dtype),
            "page_size": 1,
        }
        if save_kv_cache and k is not None:
            store = self._backend.ops.select(reference.store_kv, **traits)
            k_TKD = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
            v_TKD = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
            store(k_TKD, v_TKD, keys_SKD, values_SKD, forward_batch.out_cache_loc.long(), None)
        window = _window(layer)
        attend: AttentionOp = self._backend.ops.select(op, heads=layer.tp_q_head_num, window=window or 0, **traits)
        out_THD = attend(q_THD, keys_SKD, values_SKD, self._rows_of(window), layer.scaling, None)
        return out_THD.reshape(q_THD.shape[0], -1)

    def _rows_of(self, window: int | None) -> PagedRows:
        if window not in self._rows:
            device = self._backend.device
            self._rows[window] = PagedRows(self._query_lens_B, self._kv_lens_B, self._table_BP, 1, device, window)
        return self._rows[window]


def register_attention() -> None:
    """Make the attention known to SGLang's registry and command line, and keep Triton from the tensors around it."""
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(SglkAttention)
    HookRegistry.register("sglang.srt.utils.common.support_triton", _support_triton, HookType.AROUND)
    HookRegistry.register("sglang.srt.mem_cache.allocation.get_last_loc", _get_last_loc, HookType.REPLACE)


def _support_triton(original: Callable[[str], bool], backend: str) -> bool:
    """Answer for a name that SGLang's own list of attention backends without Triton lacks."""
    return backend != NAME and original(backend)


def _get_last_loc(*args: Any, **kwargs: Any) -> Any:
    """Find the slots of the last cached tokens by torch."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(*args, **kwargs)


def _window(layer: Any) -> int | None:
    """Return how many tokens a query sees, itself included; SGLang counts those before it, and -1 for all."""
    before = layer.sliding_window_size
    return None if before is None or before < 0 else before + 1


def _check(layer: Any) -> None:
    if layer.is_cross_attention or layer.attn_type != AttentionType.DECODER:
        raise NotImplementedError(f"{NAME} attends causally; encoders and cross attention are not supported")
    if layer.qk_head_dim != layer.v_head_dim or layer.logit_cap:
        raise NotImplementedError(f"{NAME} knows neither values of another width nor capped logits")
