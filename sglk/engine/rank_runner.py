"""One rank's part of a model as a runner that stays in step with the other ranks. Letters: T tokens, E hidden width."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from torch.distributed import FileStore  # type: ignore[attr-defined]

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, RowFailure, RowResult
from sglk.engine.fault import Fault
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.parallel.ranks import RankGroup, RanksLost

T = TypeVar("T")


class RankRunner:
    """The runner of one of `ranks`; `join` comes before the first step."""

    def __init__(self, runner: ModelRunner, ranks: RankGroup) -> None:
        self.runner = runner
        self.ranks = ranks

    def join(self, store: Path) -> None:
        """Meet the other ranks in the file `store`; returns when all are there."""
        ranks = self.ranks
        meeting = FileStore(str(store), ranks.size)
        limit = timedelta(seconds=ranks.patience_s)
        ranks.join(self.runner.backend.process_group(meeting, ranks.rank, ranks.size, limit))

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the KV tokens that fit this rank's device."""
        return self.runner.kv_capacity_tokens(runtime)

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Replace this rank's part of the KV pool."""
        self.runner.allocate_kv(num_pages, page_size)

    def run(self, batch: Batch) -> Sequence[RowResult | None]:
        """Compute this rank's part of `batch`; raises RanksLost, or what an op raises."""
        return self._in_step(batch, self.runner.run)

    def trace(self, batch: Batch) -> dict[int, Fault]:
        """Compute this rank's part again; return the first fault of each row that has one on this rank."""
        return self._in_step(batch, self.runner.trace)

    def conclude(self, faults: Sequence[Fault | None]) -> list[RowFailure]:
        """Do with the faults of failed rows, on any rank, what every rank does."""
        return self.runner.conclude(faults)

    def _in_step(self, batch: Batch, compute: Callable[[Batch], T]) -> T:
        """Compute `batch`, and stay in step with the other ranks.

        A rank that fails still brings nothing to every exchange that the others wait for, so that they get through the
        step and the next one finds all ranks at the same place. Raises RanksLost when that is no longer possible.
        """
        self.ranks.exchanges = 0
        try:
            result = compute(batch)
            self.ranks.check()
            return result
        except (RanksLost, KeyboardInterrupt):
            raise
        except BaseException:
            self._catch_up(batch.num_tokens)
            raise

    def peak_memory_bytes(self) -> int:
        """Return the most memory that this rank's device has held."""
        return self.runner.peak_memory_bytes()

    def _catch_up(self, num_tokens: int) -> None:
        try:
            self.runner.backend.execute_runnable(lambda: self._bring_nothing(num_tokens))
        except (RanksLost, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RanksLost(f"rank {self.ranks.rank} failed and cannot catch up: {error}") from error

    def _bring_nothing(self, num_tokens: int) -> None:
        model, device = self.runner.model, self.runner.backend.device
        for exchange in model.exchanges[self.ranks.exchanges :]:
            exchange.with_nothing(num_tokens, model.dtype, device)


def without_results(batch: Batch) -> Batch:
    """Return what ranks other than the first need of `batch`: which tokens, where their KV goes, and no result."""
    unsampled = SamplingParams()
    rows = [
        replace(
            row,
            request_id="",
            input_ids=list(row.input_ids),
            pages=list(row.pages),
            sampling=unsampled,
            samples=False,
            tokens=(),
            rules=None,
            scored=range(0),
        )
        for row in batch.rows
    ]
    return Batch(rows, batch.num_prefills)
