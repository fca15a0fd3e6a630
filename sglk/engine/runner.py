"""A model on one device: turns batches into tensors, runs them, and samples. Letters: T tokens, B rows."""

from collections.abc import Callable, Mapping
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from sglk.attention.base import AttentionStep
from sglk.attention.paged import PagedAttention
from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import dtype_name, kv_cache_dtype
from sglk.cache.kv import KVLayout, KVPool
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, RowResult
from sglk.engine.capacity import DeviceRoom, KVNeed, kv_capacity_tokens
from sglk.engine.sampler import Sampler
from sglk.errors import ConfigError
from sglk.models.causal_lm import CausalLM


class ModelRunner:
    """The engine's `Runner` for a model of our own; `allocate_kv` comes before the first `run`."""

    def __init__(self, model: CausalLM, backend: DeviceBackend, runtime: RuntimeConfig) -> None:
        spec = model.spec
        self.model = model
        self.backend = backend
        self.vocab_size = spec.vocab_size
        self.context_length = spec.max_position_embeddings
        self.eos_token_ids = spec.eos_token_ids
        self.weights_bytes = model.weights_bytes
        self.dtype = dtype_name(model.dtype)
        kv_dtype = kv_cache_dtype(runtime.kv_cache_dtype, model.dtype, backend.capabilities)
        self.kv_cache_dtype = dtype_name(kv_dtype)
        self._layout = KVLayout(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, kv_dtype)
        self._sampler = Sampler(backend, model.dtype, spec.vocab_size)
        self.pool: KVPool | None = None
        self._attention: PagedAttention | None = None

    @property
    def device_info(self) -> Mapping[str, str]:
        """What the machine calls the device."""
        info = self.backend.device_info()
        named = {"name": info.name, "driver": info.driver, "sdk": info.sdk}
        return {key: value for key, value in named.items() if value is not None} | info.details

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the KV tokens that fit the memory budget of `runtime`; the present pool counts as free."""
        memory = self.backend.memory_info()
        held = self.pool.num_bytes if self.pool else 0
        host_memory = self.backend.capabilities.host_memory
        # Main memory is one for all ranks, and each takes the same.
        sharers = self.model.ranks.size if host_memory else 1
        room = DeviceRoom(memory.total // sharers, memory.free // sharers + held, host_memory)
        context_length = runtime.context_length or self.context_length
        need = KVNeed(self.weights_bytes, self._layout.bytes_per_token, context_length)
        return kv_capacity_tokens(need, room, runtime)

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Replace the KV pool by an empty one; the old one is freed first."""
        sizes = self.backend.capabilities.page_sizes
        if sizes and page_size not in sizes:
            raise ConfigError(f"runtime.page_size={page_size} is not supported by this backend; choose one of {sizes}")
        if self.pool is not None:
            self.pool.free()
            self.pool = None
        self.pool = KVPool(self.backend, self._layout, num_pages, page_size)
        spec, dtype = self.model.spec, self.model.dtype
        self._attention = PagedAttention(self.backend, self.pool, spec.num_attention_heads, dtype, spec.sliding_windows)

    def run(self, batch: Batch) -> list[RowResult]:
        """Compute `batch`, write its KV, and return one result per row that reports, in row order."""
        return self.backend.execute_runnable(lambda: self._run(batch))

    def peak_memory_bytes(self) -> int:
        """Return the most device memory held since the start."""
        return self.backend.peak_memory_bytes()

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Return at once: a device of this process is lost together with the process."""

    def close(self) -> None:
        """Return at once: nothing runs outside this process."""

    def _run(self, batch: Batch) -> list[RowResult]:
        assert self._attention is not None, "run before allocate_kv"
        rows = batch.rows
        lens_B = np.array([len(row.input_ids) for row in rows], np.int64)
        starts_B = np.array([row.start for row in rows], np.int64)
        ends_B = np.cumsum(lens_B)
        ids_T = np.fromiter(chain.from_iterable(row.input_ids for row in rows), np.int64, int(ends_B[-1]))
        positions_T = np.arange(len(ids_T)) + np.repeat(starts_B + lens_B - ends_B, lens_B)
        first_B = ends_B - lens_B
        lines = [end - 1 for row, end in zip(rows, ends_B, strict=True) if row.samples]
        lines += [first + place - row.start for row, first in zip(rows, first_B, strict=True) for place in row.scored]
        kv_lens_B = starts_B + lens_B
        self._attention.plan(AttentionStep(lens_B, kv_lens_B, [row.pages for row in rows], batch.num_prefills))
        logits_BV = self.model.forward(
            self._to_device(ids_T),
            self._to_device(positions_T),
            self._attention,
            self._to_device(np.array(lines, np.int64)),
        )
        return self._sampler(logits_BV, rows) if lines else []

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.backend.device)
