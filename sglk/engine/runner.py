"""A model on one device: turns batches into tensors, runs them, and samples.

Letters: T tokens, E hidden width, L lines of logits, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from sglk.attention.paged import PagedAttention
from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import dtype_name, kv_cache_dtype
from sglk.backends.ops import op_named
from sglk.backends.rows import IntArray
from sglk.cache.kv import KVLayout, KVPool
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import NOT_FINITE, Batch, RowFailure, RowResult
from sglk.engine.capacity import DeviceRoom, KVNeed, fitting_tokens, kv_capacity_tokens
from sglk.engine.decode_graphs import DecodeGraphs
from sglk.engine.fault import Fault, failure_of
from sglk.engine.op_report import FaultCounts, OpReport
from sglk.engine.sampler import Sampler
from sglk.engine.step import Step, lay_out
from sglk.engine.tracer import Tracer
from sglk.errors import ConfigError
from sglk.models.causal_lm import CausalLM

logger = logging.getLogger(__name__)


class ModelRunner:
    """The engine's `Runner` for a model of our own; `allocate_kv` comes before the first `run`."""

    def __init__(
        self,
        model: CausalLM,
        backend: DeviceBackend,
        runtime: RuntimeConfig,
        *,
        quarantine: bool = False,
        sampler: Sampler | None = None,
    ) -> None:
        """`quarantine` = switch an implementation off that returns NaN or infinity where the reference does not.

        `sampler` = what chooses tokens where the model's logits do not.
        """
        spec = model.spec
        self.model = model
        self.backend = backend
        self.vocab_size = spec.vocab_size
        self.context_length = spec.max_position_embeddings
        self.eos_token_ids = spec.eos_token_ids
        self.dtype = dtype_name(model.dtype)
        kv_dtype = kv_cache_dtype(runtime.kv_cache_dtype, model.dtype, backend.capabilities)
        self.kv_cache_dtype = dtype_name(kv_dtype)
        self.quantization = spec.quantization.kind
        self._layout = KVLayout(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, kv_dtype)
        self._sampler = sampler or Sampler(backend, model.dtype, spec.vocab_size)
        # There is nothing to find in values that mean nothing.
        self.guards = runtime.nan_guard and not backend.simulated
        """Whether NaN and infinity are looked for in all of a prompt, and traced to an op."""
        self._quarantines = quarantine
        self._faults = FaultCounts()
        # The exchanges of a model in parts are counted as they are made.
        self._records = backend.capabilities.graph_capture and not runtime.disable_cuda_graph and model.ranks.size == 1
        self._graphs: DecodeGraphs | None = None
        self.pool: KVPool | None = None
        self._attention: PagedAttention | None = None

    @property
    def weights_bytes(self) -> int:
        """Device memory of the weights, which may come after the runner is made."""
        return self.model.weights_bytes

    @property
    def asynchronous(self) -> bool:
        """Whether the device computes while the host does something else."""
        return self.backend.asynchronous

    @property
    def device_info(self) -> Mapping[str, str]:
        """What the machine calls the device."""
        info = self.backend.device_info()
        named = {"name": info.name, "driver": info.driver, "sdk": info.sdk}
        details = info.details | ({"simulated": "true"} if self.backend.simulated else {})
        return {key: value for key, value in named.items() if value is not None} | details

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the KV tokens that fit the memory budget of `runtime`; the present pool counts as free."""
        return kv_capacity_tokens(*self._need_and_room(runtime, self.weights_bytes), runtime)

    def fitting_kv_bytes(self, runtime: RuntimeConfig, weights: int, taken: int) -> int:
        """Return what a pool will hold beside so many bytes of weights, once `taken` more of the device are in use."""
        return fitting_tokens(*self._need_and_room(runtime, weights, taken), runtime) * self._layout.bytes_per_token

    def _need_and_room(self, runtime: RuntimeConfig, weights: int, taken: int = 0) -> tuple[KVNeed, DeviceRoom]:
        memory = self.backend.memory_info()
        held = self.pool.num_bytes if self.pool else 0
        host_memory = self.backend.capabilities.host_memory
        # Main memory is one for all ranks, and each takes the same.
        sharers = self.model.ranks.size if host_memory else 1
        splittable = not host_memory and self.backend.capabilities.collectives is not None
        free = max(0, memory.free - taken) // sharers + held
        room = DeviceRoom(memory.total // sharers, free, host_memory, splittable)
        context_length = runtime.context_length or self.context_length
        return KVNeed(weights, self._layout.bytes_per_token, context_length), room

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Replace the KV pool by an empty one; the old one is freed first."""
        sizes = self.backend.capabilities.page_sizes
        if sizes and page_size not in sizes:
            raise ConfigError(f"runtime.page_size={page_size} is not supported by this backend; choose one of {sizes}")
        if self.pool is not None:
            self._graphs = None
            self.pool.free()
            self.pool = None
        self.pool = KVPool(self.backend, self._layout, num_pages, page_size)
        spec, dtype = self.model.spec, self.model.dtype
        self._attention = PagedAttention(self.backend, self.pool, spec.num_attention_heads, dtype, spec.sliding_windows)
        if self._records:
            self._graphs = DecodeGraphs(self.model, self.backend, self.pool)

    def launch(self, batch: Batch) -> Callable[[], list[RowResult | None]]:
        """Hand the model's work to a device that does it by itself; the rest, sampling, waits for its results."""
        if not self.backend.asynchronous:
            return lambda: self.run(batch)
        rest = self.backend.execute_runnable(lambda: self._launch(batch))
        return lambda: self.backend.execute_runnable(rest)

    def run(self, batch: Batch) -> list[RowResult | None]:
        """Compute `batch`, write its KV, and return one result per row, None where it reports nothing."""
        return self.backend.execute_runnable(lambda: self._launch(batch)())

    def diagnose(self, batch: Batch, rows: Sequence[int]) -> list[RowFailure]:
        """Compute `batch` again, op by op, and say why each of `rows`, which came to NOT_FINITE, did."""
        if not self.guards:
            return [NOT_FINITE] * len(rows)
        faults = self.trace(batch)
        return self.conclude([faults.get(row) for row in rows])

    def trace(self, batch: Batch) -> dict[int, Fault]:
        """Compute `batch` again; return the first fault of each row that has one."""
        return self.backend.execute_runnable(lambda: self._trace(batch))

    def conclude(self, faults: Sequence[Fault | None]) -> list[RowFailure]:
        """Count the faults of failed rows, switch off what is to be, and return the failures."""
        found = [fault for fault in faults if fault is not None]
        self._faults.add(found)
        for fault in dict.fromkeys(found):
            logger.error("%s", fault)
        if self._quarantines:
            self._switch_off(fault for fault in found if fault.cause == "op")
        off = {(each.op, each.provider) for each in self.backend.ops.quarantines()}
        return [failure_of(fault, fault is not None and (fault.op, fault.provider) in off) for fault in faults]

    def op_report(self) -> OpReport:
        """Return who runs which op, and what went wrong; may be called from any thread."""
        ops = self.backend.ops
        return OpReport(tuple(ops.choices()), tuple(ops.quarantines()), self._faults.snapshot())

    def peak_memory_bytes(self) -> int:
        """Return the most device memory held since the start."""
        return self.backend.peak_memory_bytes()

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Return at once: a device of this process is lost together with the process."""

    def close(self) -> None:
        """Return at once: nothing runs outside this process."""

    def _launch(self, batch: Batch) -> Callable[[], list[RowResult | None]]:
        step = lay_out(batch)
        if self._graphs is not None and self._graphs.takes(step):
            recorded_BV = self._graphs.logits(step)
            return lambda: list(self._sampler(recorded_BV, batch.rows))
        x_TE = self._trunk(step)
        logits_LV = self._logits(step, x_TE) if len(step.tokens_L) else None
        return lambda: self._results(batch, step, x_TE, logits_LV)

    def _results(
        self, batch: Batch, step: Step, x_TE: torch.Tensor, logits_LV: torch.Tensor | None
    ) -> list[RowResult | None]:
        results: list[RowResult | None] = [None] * len(batch.rows)
        if logits_LV is not None:
            reported = iter(self._sampler(logits_LV, batch.rows))
            results = [next(reported) if row.reports else None for row in batch.rows]
        for row in self._spoilt_prompts(step, x_TE):
            results[row] = NOT_FINITE
        return results

    def _trunk(self, step: Step) -> torch.Tensor:
        assert self._attention is not None, "run before allocate_kv"
        self._attention.plan(step.attention)
        return self.model.trunk(self._to_device(step.ids_T), self._to_device(step.positions_T), self._attention)

    def _logits(self, step: Step, x_TE: torch.Tensor) -> torch.Tensor:
        return self.model.head(x_TE[self._to_device(step.tokens_L)])

    def _spoilt_prompts(self, step: Step, x_TE: torch.Tensor) -> list[int]:
        """Return the prefilling rows of which some token is not finite: others would read its KV from the cache.

        What spoils a token's KV spoils its last hidden state, for it reads its own KV and nothing takes NaN away. Rows
        that decode have one token, whose logits tell.
        """
        prompts = step.num_prefill_tokens
        if not self.guards or not prompts:
            return []
        finite_T = x_TE[:prompts].isfinite().all(-1).cpu().numpy()
        rows: list[int] = np.unique(step.rows_T[:prompts][~finite_T]).tolist()
        return rows

    def _trace(self, batch: Batch) -> dict[int, Fault]:
        step, tracer = lay_out(batch), Tracer(len(batch.rows))
        with self.backend.ops.observed(tracer):
            if self._graphs is not None and self._graphs.takes(step):
                tracer.rows_N = self._graphs.rows_of(step)
                logits_LV = self._graphs.computed(step)
            else:
                tracer.rows_N = step.rows_T
                x_TE = self._trunk(step)
                tracer.rows_N = step.rows_L
                logits_LV = self._logits(step, x_TE)
            if len(step.tokens_L):
                tracer.rows_N = step.rows_L[: step.num_drawn]
                self._sampler(logits_LV, batch.rows)
        return tracer.faults

    def _switch_off(self, faults: Iterable[Fault]) -> None:
        for op, provider in dict.fromkeys((fault.op, fault.provider) for fault in faults):
            self.backend.ops.quarantine(op_named(op), provider, "quarantined, it returned NaN or infinity")
            logger.error("op %s of %s is switched off", op, provider)

    def _to_device(self, array: IntArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.backend.device)
