"""What goes into the engine and what comes out: the only words that servers and the engine share."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen; defaults are OpenAI's."""

    max_new_tokens: int | None = None
    """Most tokens to generate; None = up to the context length."""
    temperature: float = 1.0
    """0 (or anything up to 1e-4) = greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 = all tokens."""
    seed: int | None = None
    """Makes the request reproducible whatever else is in the batch; None = drawn from `runtime.random_seed`."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to continue."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended."""

    reason: FinishReason
    matched: int | str | None = None
    """The token id or the string that stopped it."""
    message: str | None = None
    """What went wrong, for `error`."""


@dataclass(frozen=True, slots=True)
class Output:
    """News of one request: the tokens and text since the message before it.

    `text` never ends inside a multi-byte character or inside what may become a stop string, so the texts of all
    messages join to the final answer. Exactly one message per request carries `finish`, and it is the last.

    The token that ends an answer (end of sequence, or one of `stop_token_ids`) counts in `token_ids` and
    `completion_tokens`, as in the OpenAI API, but gives no text; so do the tokens of a matched stop string.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    completion_tokens: int
    """Tokens generated so far, all messages together."""
    cached_tokens: int
    """Prompt tokens answered from the prefix cache."""
    finish: Finish | None = None
    queue_s: float | None = None
    """Seconds between submission and the first step; None where the engine does not say."""


@dataclass(slots=True)
class EngineStats:
    """Gauges and counters of one engine; counters only grow while the engine lives."""

    running_requests: int = 0
    queued_requests: int = 0
    kv_capacity_tokens: int = 0
    kv_used_tokens: int = 0
    """Held by live requests."""
    kv_cached_tokens: int = 0
    """Held by the prefix cache alone, evictable."""
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Part of `prompt_tokens` answered from the prefix cache."""
    generated_tokens: int = 0
    steps: int = 0
    retractions: int = 0
    evicted_tokens: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    generation_throughput: float = 0.0
    """Tokens per second over the last few seconds."""
