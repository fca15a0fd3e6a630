"""What goes into the engine and what comes out: the only words that servers and the engine share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]

GrammarKind = Literal["json_schema", "regex", "choice", "ebnf"]

LOGPROB_FLOOR = -9999.0
"""Stands for the logarithm of 0, which JSON cannot express."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like."""

    kind: GrammarKind
    text: str
    """A JSON schema, a regular expression, a JSON list of strings, or a grammar in GBNF or Lark."""


DEFAULT_MAX_NEW_TOKENS = 128
"""Where a prompt is to be continued and nobody says how far; SGLang's own default."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen; defaults are OpenAI's.

    Logits pass, in this order: repetition penalty, presence and frequency penalty, bias, end tokens held back by
    `min_new_tokens`, grammar, temperature, top_k, top_p, min_p. Logprobs are the model's own, before all of these.
    """

    max_new_tokens: int | None = None
    """Most tokens to generate; None = up to the context length, 0 = none: the prompt is only computed (and scored)."""
    min_new_tokens: int = 0
    """Tokens that end an answer are held back, and stop strings ignored, in the first `min_new_tokens` tokens.

    A grammar that is complete ends the answer even so.
    """
    temperature: float = 1.0
    """0 (or anything up to 1e-4) = greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 = all tokens."""
    min_p: float = 0.0
    """Drops tokens less likely than this share of the likeliest one."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens that the answer has already."""
    frequency_penalty: float = 0.0
    """Taken off the logits of the answer's tokens, as often as they occur in it."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or answer (Keskar et al. 2019, CTRL)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to their logits, -100 to 100."""
    seed: int | None = None
    """Makes the request reproducible whatever else is in the batch; None = drawn from `runtime.random_seed`."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Go on after the model's end of sequence; without effect where `grammar` says when the answer is complete."""
    grammar: Grammar | None = None
    logprobs: int | None = None
    """Report the logprob of each token, and those of this many likeliest ones beside it; None = nothing."""
    prompt_logprobs_start: int | None = None
    """Report the same for the prompt tokens after this position; None = for none of them.

    Their logits are computed for it: the prefix cache serves at most the tokens before this position.
    """


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to continue."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    session: str | None = None
    """Conversation that it belongs to; a router keeps one conversation on one device group."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was where it stands, and which were the likeliest there."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability, at least LOGPROB_FLOOR."""
    top: tuple[tuple[int, float], ...] = ()
    """Likeliest token ids with their logprobs, from the likeliest on."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended."""

    reason: FinishReason
    matched: int | str | None = None
    """The token id or the string that stopped it."""
    message: str | None = None
    """What went wrong, for `error`."""
    code: str | None = None
    """Short reason of an `error` for which the request itself is to blame."""
    doubtful: bool = False
    """Whether the request may be to blame all the same for an `error` without a code."""


FULL = Finish("length")
"""Why most requests end: the answer has all its tokens."""


# Not frozen, which takes three times as long to make: there is one for each token.
@dataclass(slots=True)
class Output:
    """News of one request: the tokens and text since the message before it.

    `text` never ends inside a multi-byte character or inside what may become a stop string, so the texts of all
    messages join to the final answer. Exactly one message per request carries `finish`, and it is the last.

    The token that ends an answer (end of sequence, or one of `stop_token_ids`) counts in `token_ids` and
    `completion_tokens`, as in the OpenAI API, but gives no text; so do the tokens of a matched stop string.
    """

    request_id: str
    token_ids: Sequence[int]
    text: str
    prompt_tokens: int
    completion_tokens: int
    """Tokens generated so far, all messages together."""
    cached_tokens: int
    """Prompt tokens answered from the prefix cache."""
    finish: Finish | None = None
    queue_s: float | None = None
    """Seconds between submission and the first step, at engines that failed included; None where nobody says."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `token_ids`, where they were asked for."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """For the prompt tokens from `prompt_logprobs_start` on, None for the first; comes once, with the first tokens."""
    replica: str = ""
    """Name of the engine that says it."""
    moved_from: str = ""
    """Name of the one that had failed the request before, if any."""


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
    busy_s: float = 0.0
    """Spent in steps, from handing one to the device to what it comes to."""
    retractions: int = 0
    evicted_tokens: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    generation_throughput: float = 0.0
    """Tokens per second over the last few seconds."""
