"""The paged KV pool: where the keys and values of past tokens live on the device."""

from dataclasses import dataclass

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.kv_values import KVScales

SCALE = torch.float32


@dataclass(frozen=True)
class KVLayout:
    """What one token leaves in the pool."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def scaled(self) -> bool:
        """Whether every token and head has a scale of its own beside its key and its value."""
        return self.dtype is torch.int8

    @property
    def bytes_per_token(self) -> int:
        """2 (key and value) x layers x key/value heads x (head width x bytes per element + scale)."""
        head = self.head_dim * self.dtype.itemsize + (SCALE.itemsize if self.scaled else 0)
        return 2 * self.num_layers * self.num_kv_heads * head


class KVPool:
    """Keys and values of `num_pages` pages of `page_size` tokens, one pair of tensors per layer, int8 ones with scales.

    Letters: S = num_pages * page_size slots, K key/value heads, D head width. Pages lie one after another, so token
    `offset` of a page is in slot `page * page_size + offset`. Tensors are [S, K, D], or where the backend wants
    head-major pages [num_pages, K, page_size, D]. The memory is not cleared: a slot that nobody wrote may
    hold anything, NaN included, and attention ops must not read past a row's end.
    """

    def __init__(self, backend: DeviceBackend, layout: KVLayout, num_pages: int, page_size: int) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self.page_size = page_size
        self._backend = backend
        shape: tuple[int, ...] = (num_pages * page_size, layout.num_kv_heads, layout.head_dim)
        if backend.capabilities.head_major_pages:
            shape = (num_pages, layout.num_kv_heads, page_size, layout.head_dim)
        self.keys = [backend.allocate_cache(shape, layout.dtype) for _ in range(layout.num_layers)]
        self.values = [backend.allocate_cache(shape, layout.dtype) for _ in range(layout.num_layers)]
        self.scales = [self._allocate_scales() for _ in range(layout.num_layers)]

    @property
    def num_bytes(self) -> int:
        """Device memory that the pool holds, in bytes."""
        return self.num_pages * self.page_size * self.layout.bytes_per_token

    def free(self) -> None:
        """Give the memory back; the pool must not be used afterwards."""
        for tensor in (*self.keys, *self.values):
            self._backend.free(tensor)
        for scales in self.scales:
            if scales is not None:
                self._backend.free(scales.keys_SK)
                self._backend.free(scales.values_SK)
        self.keys, self.values, self.scales = [], [], []

    def fill(self) -> None:
        """Write zeros everywhere: a system may commit memory only when it is written, and reads the rest in no time."""
        with torch.inference_mode():
            for tensor in (*self.keys, *self.values):
                tensor.zero_()
            for scales in self.scales:
                if scales is not None:
                    scales.keys_SK.zero_()
                    scales.values_SK.zero_()

    def _allocate_scales(self) -> KVScales | None:
        if not self.layout.scaled:
            return None
        shape_SK = (self.num_pages * self.page_size, self.layout.num_kv_heads)
        return KVScales(self._backend.allocate_cache(shape_SK, SCALE), self._backend.allocate_cache(shape_SK, SCALE))
