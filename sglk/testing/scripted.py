"""A runner without a model: deterministic, torch-free, and quick to notice KV that is not its own."""

import threading
from collections.abc import Callable, Mapping, Sequence

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import NOT_FINITE, Batch, BatchRow, RowFailure, RowResult
from sglk.engine.op_report import OpReport

MODULUS = (1 << 61) - 1
EMPTY = (-1, 0)
SPOILT = (-2, 0)

Prompt = tuple[int, ...]


class ScriptedRunner:
    """Implements `Runner` over a page table of plain Python lists.

    Every slot of the pool holds one token and a state that depends on all slots before it, as KV does. The next token
    is a function of all slots that the row's pages name and, above temperature 0, of the row's seed and draw. So one
    stale page, a wrong position or another request's KV changes the answer.

    `script` gives the answers of some prompts instead: a mapping from prompt to token ids (then the first end-of-
    sequence token), or a function from the prompt to its answer or None.
    `before_step` is called with the number of the step (from 1) and the batch; what it raises, `run` raises.
    `spoils` says why a row fails alone, or None; the KV that such a row writes is never to be read.
    `gate`, an event, holds every step until it is set.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 320,
        context_length: int = 256,
        kv_tokens: int = 4096,
        eos_token_ids: frozenset[int] = frozenset({257}),
        script: Mapping[Prompt, Sequence[int]] | Callable[[Prompt], Sequence[int] | None] | None = None,
        before_step: Callable[[int, Batch], None] | None = None,
        spoils: Callable[[BatchRow], str | None] = lambda row: None,
        gate: threading.Event | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.weights_bytes = 0
        self.asynchronous = False
        self.dtype = self.kv_cache_dtype = "fp32"
        self.quantization: str | None = None
        self.device_info: Mapping[str, str] = {"name": "scripted"}
        self.batches: list[tuple[int, int]] = []
        """Prefill rows and decode rows of each step."""
        self._kv_tokens = kv_tokens
        self._script = script if callable(script) else (script or {}).get
        self._before_step = before_step
        self._spoils = spoils
        self._gate = gate
        self.closed = False
        self.lose: Callable[[str], None] = _not_watched
        self._page_size = 1
        self._pages = _Pages(0, 1)

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return `max_total_tokens`, or the size given at construction."""
        return runtime.max_total_tokens or self._kv_tokens

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Make an empty pool, whose pages come into being when they are touched: it may be a huge one."""
        self._page_size = page_size
        self._pages = _Pages(num_pages, page_size)

    def launch(self, batch: Batch) -> Callable[[], list[RowResult | None]]:
        """Return `run` itself."""
        return lambda: self.run(batch)

    def run(self, batch: Batch) -> list[RowResult | None]:
        """Write the slots of every row, then return a token or a failure for each row that samples, None for others."""
        if self._gate is not None:
            self._gate.wait()
        self.batches.append((batch.num_prefills, len(batch.rows) - batch.num_prefills))
        if self._before_step is not None:
            self._before_step(len(self.batches), batch)
        return [self._result(row) for row in batch.rows]

    def diagnose(self, batch: Batch, rows: Sequence[int]) -> list[RowFailure]:
        """Know no more than that they failed."""
        return [NOT_FINITE] * len(rows)

    def op_report(self) -> OpReport:
        """Return an empty report: there are no ops."""
        return OpReport()

    def peak_memory_bytes(self) -> int:
        """Return 0: nothing is held on a device."""
        return 0

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Keep `on_lost` as `lose`, for a test to call."""
        self.lose = on_lost

    def close(self) -> None:
        """Note that the runner is closed."""
        self.closed = True

    def _result(self, row: BatchRow) -> RowResult | None:
        history = self._compute(row)
        reason = self._spoils(row)
        if reason is not None:
            for position in range(row.start, len(history)):
                self._write(row, position, SPOILT)
        if not row.samples:
            return None
        return self._next_token(row, history) if reason is None else RowFailure(reason)

    def _compute(self, row: BatchRow) -> list[tuple[int, int]]:
        """Write the row's slots and return all slots of its history."""
        history = self._read(row.pages, row.start)
        state = sum(slot[1] for slot in history)
        for position, token in enumerate(row.input_ids, start=row.start):
            slot = (token, _mix(state, token, position))
            self._write(row, position, slot)
            history.append(slot)
            state += slot[1]
        return history

    def _write(self, row: BatchRow, position: int, slot: tuple[int, int]) -> None:
        page, offset = divmod(position, self._page_size)
        self._pages[row.pages[page]][offset] = slot

    def _read(self, pages: Sequence[int], length: int) -> list[tuple[int, int]]:
        used = -(-length // self._page_size)
        slots = [slot for page in pages[:used] for slot in self._pages[page]][:length]
        assert EMPTY not in slots, "a row reads KV that was never written"
        assert SPOILT not in slots, "a row reads KV of a row that failed"
        return slots

    def _next_token(self, row: BatchRow, history: list[tuple[int, int]]) -> int:
        tokens = tuple(slot[0] for slot in history)
        answer = self._script(tokens[: len(tokens) - row.num_generated])
        if answer is not None:
            return answer[row.num_generated] if row.num_generated < len(answer) else min(self.eos_token_ids)
        state = sum(slot[1] for slot in history)
        if row.sampling.temperature > 1e-4:
            state = _mix(state, row.seed, row.num_generated)
        return _mix(state, 0, len(history)) % self.vocab_size


class _Pages(dict[int, list[tuple[int, int]]]):
    """Pages of empty slots by number; IndexError for a number that the pool does not have."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._num_pages = num_pages
        self._page_size = page_size

    def __missing__(self, page: int) -> list[tuple[int, int]]:
        if not 0 <= page < self._num_pages:
            raise IndexError(f"page {page} is not one of {self._num_pages}")
        self[page] = slots = [EMPTY] * self._page_size
        return slots


def _not_watched(reason: str) -> None:
    raise AssertionError("nobody watches this runner")


def _mix(state: int, token: int, position: int) -> int:
    value = (state * 6364136223846793005 + token * 1442695040888963407 + position * 2654435769 + 1) % MODULUS
    return (value ^ (value >> 29)) * 0x9E3779B97F4A7C15 % MODULUS
