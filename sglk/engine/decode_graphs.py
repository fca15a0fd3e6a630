"""Decode steps that are recorded on the device and launched as a whole. Letters: B rows, V vocabulary."""

import logging
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import torch

from sglk.attention.base import AttentionStep
from sglk.attention.paged import PagedAttention
from sglk.backends.base import DeviceBackend, DeviceGraph
from sglk.backends.rows import IntArray
from sglk.cache.kv import KVPool
from sglk.engine.step import Step
from sglk.errors import BackendError
from sglk.models.causal_lm import CausalLM

logger = logging.getLogger(__name__)

MIN_WIDTH = 64
MIN_EXACT_WIDTH = 512
"""Where no op pays for the width of a row, but for what is in it."""
MAX_GRAPHS = 256
MAX_ENTRIES = 2**23
"""Of the page tables of all graphs, of 8 bytes each. The graph used longest ago makes way."""
MAX_WIDTH = 8192
"""Tokens of a row from which a step takes long enough to hide the launch of its kernels."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What all steps of a graph have in common."""

    rows: int
    width: int
    """Tokens of the longest row that fits."""

    @classmethod
    def of(cls, step: Step, exact: bool) -> "DecodeShape":
        """Return the smallest shape that `step` fits, of so many rows where it has to be `exact`, else of powers of
        two."""
        rows = len(step.ids_T) if exact else _power_of_two(len(step.ids_T))
        return cls(rows, max(MIN_EXACT_WIDTH if exact else MIN_WIDTH, _power_of_two(step.attention.longest)))


class DecodeGraphs:
    """The decode steps of one model over one KV pool, a graph for each shape."""

    def __init__(self, model: CausalLM, backend: DeviceBackend, pool: KVPool) -> None:
        self._model = model
        self._backend = backend
        self._pool = pool
        self._recorded: OrderedDict[DecodeShape, RecordedStep] = OrderedDict()
        self._quarantines = 0
        self._works = True
        self._eager = backend.capabilities.eager_capture

    def takes(self, step: Step) -> bool:
        """Return whether `step` only decodes, each row a token, and its rows are not too long."""
        attention = step.attention
        decodes = attention.num_prefills == 0 and len(step.tokens_L) == len(step.ids_T)
        return self._works and decodes and attention.longest <= MAX_WIDTH

    def logits(self, step: Step) -> torch.Tensor:
        """Compute `step` and return its logits_BV, which hold until the next step.

        A shape that comes for the first time is computed kernel by kernel and recorded; so it is at the second step
        after an op was switched off.
        """
        if self._forget_what_is_switched_off():
            # What runs instead lays its weights out at its first call, which is no part of a step to be repeated.
            return self.computed(step)
        shape = self._shape(step)
        recorded = self._recorded.get(shape)
        if recorded is not None:
            self._recorded.move_to_end(shape)
            recorded.fill(step)
            return recorded.replay()[: len(step.ids_T)]
        recorded = RecordedStep(self._model, self._backend, self._pool, shape, step)
        try:
            logits_BV = recorded.record()
            self._keep(shape, recorded)
        except BackendError as error:
            level = logging.INFO if self._eager else logging.WARNING
            logger.log(level, "decode steps are launched kernel by kernel: %s", error)
            self._works = False
            logits_BV = recorded.compute()
        return logits_BV[: len(step.ids_T)]

    def rows_of(self, step: Step) -> IntArray:
        """Return the row of each token that `computed` computes."""
        return _filled_up(step, self._shape(step).rows).rows_T

    def computed(self, step: Step) -> torch.Tensor:
        """Return what `logits` does, computed kernel by kernel, for whoever watches the ops."""
        recorded = RecordedStep(self._model, self._backend, self._pool, self._shape(step), step)
        return recorded.compute()[: len(step.ids_T)]

    def _shape(self, step: Step) -> DecodeShape:
        return DecodeShape.of(step, self._eager)

    def _keep(self, shape: DecodeShape, recorded: "RecordedStep") -> None:
        self._recorded[shape] = recorded
        while len(self._recorded) > MAX_GRAPHS or (len(self._recorded) > 1 and self._entries() > MAX_ENTRIES):
            self._recorded.popitem(last=False)

    def _entries(self) -> int:
        return sum(shape.rows * shape.width for shape in self._recorded) // self._pool.page_size

    def _forget_what_is_switched_off(self) -> bool:
        """Forget all graphs, and return true, where an implementation was switched off since the last step."""
        quarantines = len(self._backend.ops.quarantines())
        if quarantines == self._quarantines:
            return False
        self._recorded.clear()
        self._quarantines = quarantines
        return True


class RecordedStep:
    """The tensors that decode steps of one shape are computed from, and what computes them."""

    def __init__(self, model: CausalLM, backend: DeviceBackend, pool: KVPool, shape: DecodeShape, first: Step) -> None:
        spec = model.spec
        self._model = model
        self._backend = backend
        self._shape = shape
        self._attention = PagedAttention(
            backend, pool, spec.num_attention_heads, model.dtype, spec.sliding_windows, recorded=True
        )
        step = _filled_up(first, shape.rows)
        self._ids_B = self._on_device(step.ids_T)
        self._positions_B = self._on_device(step.positions_T)
        self._attention.plan(step.attention, shape.width)
        self._graph: DeviceGraph[torch.Tensor] | None = None

    def fill(self, step: Step) -> None:
        """Put another step into the tensors."""
        step = _filled_up(step, self._shape.rows)
        self._backend.copy(torch.from_numpy(step.ids_T), self._ids_B)
        self._backend.copy(torch.from_numpy(step.positions_T), self._positions_B)
        self._attention.refill(step.attention, self._shape.width)

    def compute(self) -> torch.Tensor:
        """Return logits_BV, kernel by kernel."""
        return self._model.head(self._model.trunk(self._ids_B, self._positions_B, self._attention))

    def record(self) -> torch.Tensor:
        """Return logits_BV, kernel by kernel, and record how; raises BackendError where that is not possible."""
        if self._backend.capabilities.eager_capture:
            self._graph = self._backend.capture_graph(self.compute)
            return self._graph.result
        logits_BV = self.compute()
        self._graph = self._backend.capture_graph(self.compute)
        return logits_BV

    def replay(self) -> torch.Tensor:
        """Return logits_BV by one launch."""
        assert self._graph is not None, "replay before record"
        return self._graph.replay()

    def _on_device(self, array: IntArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._backend.device)


def _filled_up(step: Step, rows: int) -> Step:
    """Return `step` with copies of its first row behind it, which write once more what that row writes."""
    missing = rows - len(step.ids_T)
    if not missing:
        return step
    old = step.attention
    attention = AttentionStep(
        _repeated(old.query_lens, missing), _repeated(old.kv_lens, missing), [*old.pages, *[old.pages[0]] * missing], 0
    )
    ids_B, positions_B, rows_B = (_repeated(array, missing) for array in (step.ids_T, step.positions_T, step.rows_T))
    return replace(step, ids_T=ids_B, positions_T=positions_B, rows_T=rows_B, attention=attention)


def _repeated(array_B: IntArray, times: int) -> IntArray:
    """Return `array_B` with its first number so many times behind it."""
    return np.concatenate((array_B, np.repeat(array_B[:1], times)))


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
