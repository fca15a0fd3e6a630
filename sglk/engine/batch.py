"""One step's work as the scheduler hands it to a runner, and what a runner is: no tensors, no device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sglk.config.schema import RuntimeConfig
from sglk.engine.logits import LogitRules
from sglk.engine.messages import SamplingParams, TokenLogprob
from sglk.errors import SglkError

if TYPE_CHECKING:
    from sglk.engine.op_report import OpReport


@dataclass(slots=True)
class BatchRow:
    """The part of one request that is computed in this step; valid until the scheduler takes what it came to."""

    request_id: str
    input_ids: Sequence[int]
    """Tokens to compute: a prompt chunk, or the one token generated last."""
    start: int
    """Position of the first of them, that is, the number of tokens whose KV is already in the pool."""
    pages: Sequence[int]
    """Pages of the KV pool that hold positions 0 .. start + len(input_ids) - 1, in order."""
    sampling: SamplingParams
    seed: int
    """Resolved sampling seed of the request."""
    num_generated: int
    """Tokens generated before this step; together with `seed` it fixes the random draw."""
    samples: bool
    """Whether the step yields a token for this row; False for all but the last chunk of a prompt."""
    tokens: Sequence[int] = ()
    """All tokens of the request so far, for `rules` and `scored` to read; nobody changes them here."""
    rules: LogitRules | None = None
    """What the request changes about the model's logits; None = nothing."""
    scored: range = range(0)
    """Positions of this step for which the logprob of the prompt token after them is asked for."""

    @property
    def reports(self) -> bool:
        """Whether the step has a result for this row."""
        return self.samples or len(self.scored) > 0


@dataclass(slots=True)
class Batch:
    """Rows of one forward pass, prefills first, then decodes (one input token each)."""

    rows: list[BatchRow]
    num_prefills: int

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(row.input_ids) for row in self.rows)

    def part(self, start: int, end: int) -> "Batch":
        """Return a batch of the rows from `start` to before `end`."""
        return Batch(self.rows[start:end], min(max(self.num_prefills - start, 0), end - start))


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why a row got no token, though the step went well for others; its KV is worth nothing."""

    message: str
    device: bool = False
    """Whether the device is to blame rather than the row; the engine gives up when that goes on."""
    code: str | None = None
    """Short reason, where the request is to blame."""


NOT_FINITE = RowFailure(
    "the model's logits are not finite; try runtime.dtype=fp32, or runtime.nan_guard=true to learn which op is to blame"
)
"""The model's numbers for a row became NaN or infinity."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a row comes to when logprobs are asked for."""

    token: TokenLogprob | None
    """The new token; None where the row does not sample."""
    prompt: tuple[TokenLogprob, ...] = ()
    """The prompt token after each of the `scored` positions."""


RowResult = int | Scored | RowFailure
"""What a row that reports comes to: a token, with logprobs where they are asked for, or nothing."""


class RunnerLost(SglkError):
    """The runner can never compute again: a process or a device that it needs is gone."""


class Runner(Protocol):
    """A model on a device with a paged KV pool: computes batches, decides nothing.

    All methods but the read-only facts are called from one thread, the engine's.
    """

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to `vocab_size - 1`."""

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together that the model can take."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens by which the model ends its answer."""

    @property
    def weights_bytes(self) -> int:
        """Device memory that the weights hold."""

    @property
    def dtype(self) -> str:
        """What it computes in, such as `fp32`."""

    @property
    def kv_cache_dtype(self) -> str:
        """What the KV pool holds."""

    @property
    def quantization(self) -> str | None:
        """How the weights of linear layers are stored and multiplied, such as `w8a8`; None = in `dtype`."""

    @property
    def device_info(self) -> Mapping[str, str]:
        """What the machine calls the device, for records and profiles."""

    @property
    def asynchronous(self) -> bool:
        """Whether the device works by itself between `launch` and the call of what comes back."""

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the KV tokens that fit the memory budget of `runtime`; raises CapacityError when none does."""

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Free the KV pool and make an empty one of `num_pages` pages of `page_size` tokens."""

    def launch(self, batch: Batch) -> Callable[[], Sequence[RowResult | None]]:
        """Begin to compute `batch`; the function that comes back waits for its end and does the rest of `run`.

        Where the device works by itself, the caller has time for something else in between; elsewhere all is done by
        that function. It is called once, and before the next batch. Both may raise what `run` raises.
        """

    def run(self, batch: Batch) -> Sequence[RowResult | None]:
        """Compute `batch`, write its KV, and return one result per row, None for one that does not `report`.

        A row that comes to nothing by itself (its numbers are not finite) fails alone. Where that cannot be told, `run`
        raises, and is called again with parts of the batch to find the rows that fail: the same rows give the same.
        Raises RunnerLost when that makes no sense.
        """

    def diagnose(self, batch: Batch, rows: Sequence[int]) -> Sequence[RowFailure]:
        """Say of each of `rows`, which `run` has just failed with NOT_FINITE, why: one failure per row.

        May compute the step again, and switch off an op's implementation that is to blame.
        """

    def op_report(self) -> "OpReport":
        """Return who runs which op, and what went wrong; may be called from any thread."""

    def peak_memory_bytes(self) -> int:
        """Return the most device memory held since the start; may be called from any thread."""

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Call `on_lost` with the reason, from any thread, when the runner is lost between two steps."""

    def close(self) -> None:
        """End what runs outside this process; the runner must not be used afterwards. Harmless when done before."""
