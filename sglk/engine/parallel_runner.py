"""A model split over several processes, as one runner: the first rank is here, the others follow."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import NOT_FINITE, Batch, RowFailure, RowResult, RunnerLost
from sglk.engine.fault import first_faults
from sglk.engine.follower import Follower, FollowerSilent
from sglk.engine.op_report import OpReport
from sglk.engine.rank_messages import Call
from sglk.engine.rank_runner import RankRunner, without_results
from sglk.parallel.ranks import RankSilent, RanksLost

logger = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_S = 1.0
"""How long a rank may need longer than the first one at least: both have made the same exchanges."""

LAST_WORDS_S = 5.0
"""How long to look for the rank that ended, once the others have lost it."""


class ParallelRunner:
    """The engine's `Runner` for rank 0 of a model and the processes of its other ranks, which have joined.

    Every rank computes every step, and the first one alone chooses the tokens. A rank that fails fails the step on all;
    they stay in step. When a rank ends, or hangs for longer than the others have patience, the model is lost and the
    processes of all other ranks end.
    """

    def __init__(self, first: RankRunner, followers: Sequence[Follower], ending: ExitStack) -> None:
        """`ending` stops the followers, and is closed by `close`."""
        self._first = first
        self._followers = followers
        self._ending = ending
        self._loss: str | None = None
        self._ended = threading.Event()
        self._closed = False
        self._closing = threading.Lock()
        self._on_lost: Callable[[str], None] | None = None
        for follower in followers:
            name = f"sglk-rank{follower.rank}"
            threading.Thread(target=self._wait_for_end, args=(follower,), name=name, daemon=True).start()

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one less."""
        return self._first.runner.vocab_size

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._first.runner.context_length

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens by which the model ends its answer."""
        return self._first.runner.eos_token_ids

    @property
    def weights_bytes(self) -> int:
        """Device memory that the weights of one rank hold."""
        return self._first.runner.weights_bytes

    @property
    def dtype(self) -> str:
        """Name of the compute dtype."""
        return self._first.runner.dtype

    @property
    def kv_cache_dtype(self) -> str:
        """Name of the dtype that keys and values are kept in."""
        return self._first.runner.kv_cache_dtype

    @property
    def quantization(self) -> str | None:
        """How the weights of linear layers are stored and multiplied; None = in the compute dtype."""
        return self._first.runner.quantization

    @property
    def device_info(self) -> Mapping[str, str]:
        """What the machine calls the first rank's device, and how many ranks there are."""
        return {**self._first.runner.device_info, "ranks": str(self._first.ranks.size)}

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the KV tokens that fit the fullest device; all ranks hold the same tokens."""
        return min(self._everywhere(lambda: self._first.kv_capacity_tokens(runtime), "kv_capacity_tokens", runtime))

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Replace the KV pool on all ranks."""
        self._everywhere(lambda: self._first.allocate_kv(num_pages, page_size), "allocate_kv", num_pages, page_size)

    @property
    def asynchronous(self) -> bool:
        """False: the ranks wait for each other many times in a step."""
        return False

    def launch(self, batch: Batch) -> Callable[[], Sequence[RowResult | None]]:
        """Return `run` itself."""
        return lambda: self.run(batch)

    def run(self, batch: Batch) -> Sequence[RowResult | None]:
        """Compute `batch` on all ranks; raises what the lowest rank that failed raised, and RunnerLost."""
        return self._everywhere(lambda: self._first.run(batch), "run", without_results(batch))[0]

    def diagnose(self, batch: Batch, rows: Sequence[int]) -> Sequence[RowFailure]:
        """Compute `batch` again on all ranks, and say why each of `rows` failed: by the first fault on any rank."""
        if not self._first.runner.guards:
            return [NOT_FINITE] * len(rows)
        first = first_faults(self._everywhere(lambda: self._first.trace(batch), "trace", without_results(batch)))
        faults = [first.get(row) for row in rows]
        return self._everywhere(lambda: self._first.conclude(faults), "conclude", faults)[0]

    def op_report(self) -> OpReport:
        """Return who runs which op on the first rank, and what went wrong on any."""
        return self._first.runner.op_report()

    def peak_memory_bytes(self) -> int:
        """Return the most memory that any rank's device has held, as of its last step."""
        return max(self._first.peak_memory_bytes(), *(follower.peak_memory_bytes for follower in self._followers))

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Call `on_lost` with the reason, from another thread, when a rank ends that should not."""
        self._on_lost = on_lost
        if self._loss is not None:
            on_lost(self._loss)

    def close(self) -> None:
        """End the other ranks' processes."""
        self._closed = True
        # Who is told refers to this object.
        self._on_lost = None
        with self._closing:
            self._ending.close()

    def _everywhere(self, own: Callable[[], T], method: str, *arguments: Any) -> list[T]:
        """Call `own` here and `method` on the other ranks, all at once; return the results by rank."""
        if self._loss is not None:
            raise RunnerLost(self._loss)
        began_s = time.monotonic()

        def answer_of(follower: Follower) -> T:
            left_s = began_s + self._first.ranks.patience_s - time.monotonic()
            answer: T = follower.receive(max(left_s, ANSWER_S))
            return answer

        try:
            for follower in self._followers:
                follower.send(Call(method, arguments))
            answers: list[Callable[[], T]] = [partial(answer_of, one) for one in self._followers]
            # Every answer is taken before the first failure is told, or the next step would read what is left.
            outcomes = [_attempt(act) for act in (own, *answers)]
        except (RanksLost, RunnerLost) as error:
            raise self._lost(error) from error
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [value for outcome in outcomes for value in outcome.values]

    def _lost(self, error: Exception) -> RunnerLost:
        """Return why the ranks have lost each other: one of them hangs, or it ended, in most cases."""
        if isinstance(error, RankSilent | FollowerSilent):
            words = str(error) if isinstance(error, FollowerSilent) else self._silence() or str(error)
            self._loss = f"{words}; should steps take that long, raise router.step_timeout_s"
        elif not self._ended.wait(LAST_WORDS_S):
            self._loss = f"the ranks have lost each other: {error}"
        assert self._loss is not None
        # A rank that hangs takes a while to end, in which whoever waits for an answer can be told.
        threading.Thread(target=self.close, name="sglk-ranks-end", daemon=True).start()
        return RunnerLost(self._loss)

    def _silence(self) -> str | None:
        """Return which ranks hang, where none has answered so far; others lose patience at about the same time."""
        silent = [str(one.rank) for one in self._followers if not one.answers(ANSWER_S)]
        if not silent:
            return None
        ranks = f"rank {silent[0]} has" if len(silent) == 1 else f"ranks {', '.join(silent)} have"
        return f"{ranks} not answered for {self._first.ranks.patience_s:.3g} s"

    def _wait_for_end(self, follower: Follower) -> None:
        follower.wait()
        if self._closed or self._ended.is_set():
            return
        words, said = follower.end()
        self._loss = words
        self._ended.set()
        logger.error("%s", words)
        for line in said:
            logger.error("rank %d said: %s", follower.rank, line)
        on_lost = self._on_lost
        if on_lost is not None:
            on_lost(words)
        self.close()


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """What came of an attempt: one value, or an error."""

    values: tuple[T, ...] = ()
    error: BaseException | None = None


def _attempt(act: Callable[[], T]) -> _Outcome[T]:
    try:
        return _Outcome((act(),))
    except (RanksLost, RunnerLost, KeyboardInterrupt):
        raise
    # Not lost: it is raised when all ranks have answered.
    except BaseException as error:  # noqa: BLE001
        return _Outcome(error=error)
