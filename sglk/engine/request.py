"""One request as the scheduler sees it."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglk.cache.radix import Key
from sglk.cache.table import PageTable
from sglk.engine.batch import BatchRow, Scored
from sglk.engine.logits import LogitRules
from sglk.engine.messages import FULL, Finish, SamplingParams, TokenLogprob
from sglk.engine.prefill import Lead

_NONE = range(0)


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, the tokens generated so far, and where their KV lies."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    """Resolved sampling seed."""
    max_new_tokens: int
    """Resolved limit: the one asked for, or the room that is left."""
    stop_ids: frozenset[int]
    """Tokens that end the answer."""
    table: PageTable
    rules: LogitRules | None = None
    """What it changes about the model's logits; follows `tokens`."""
    tokens: "array[int]" = field(init=False)
    """Prompt and answer."""
    computed: int = 0
    """Leading tokens whose KV is in the pool."""
    cached_tokens: int = 0
    """Prompt tokens answered from the prefix cache at the first admission."""
    admissions: int = 0
    """How often the request left the queue; more than once after a retraction."""
    queued_at: int = 0
    """Admission pass in which it joined the queue."""
    peeked: tuple[int, int] = (-1, 0)
    """Version of the prefix cache, and the cached length that it had for the prompt."""
    lead: Lead | None = None
    logprob: TokenLogprob | None = None
    """Of the last token, where logprobs are asked for."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the prompt tokens after `prompt_logprobs_start`, as far as they are computed."""
    finish: Finish | None = None
    decode_row: BatchRow | None = None
    """Its row of the last step in which it decoded since it was admitted."""
    most_tokens: int = field(init=False)
    """Prompt and answer at its longest."""
    origin: int = 0
    """Tokens it has while it decodes, less the scheduler's decode steps so far."""
    sure_until: int = 0
    """Decode step with which it ends at the latest; 0 where a token may end it before."""
    grows_at: int = 0
    """Decode steps after which it takes another page."""

    def __post_init__(self) -> None:
        self.tokens = array("I", self.prompt_ids)
        self.most_tokens = len(self.prompt_ids) + self.max_new_tokens

    def decode_from(self, decode_steps: int) -> None:
        """Begin to get a token in each decode step, of which there were `decode_steps` so far."""
        tokens = len(self.tokens)
        self.origin = tokens - decode_steps
        self.sure_until = 0 if self.stop_ids else self.most_tokens - self.origin
        self.grows_at = self.table.capacity - self.origin + 1

    def grow(self) -> None:
        """Take the page for the next token after those that the present ones hold; there is one."""
        room = self.table.grow()
        assert room, "the last request alone fits the pool"
        self.grows_at = self.table.capacity - self.origin + 1

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.prompt_ids)

    def beginning(self, length: int) -> Key:
        """Return the leading `length` tokens."""
        return self.tokens[:length].tobytes()

    @property
    def left(self) -> int:
        """Tokens that it may still add."""
        return self.most_tokens - len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def unscored(self) -> range:
        """Positions whose logits are still needed, for the logprob of the prompt token after each."""
        start = self.sampling.prompt_logprobs_start
        if start is None:
            return _NONE
        return range(start + len(self.prompt_logprobs), len(self.prompt_ids) - 1)

    @property
    def reusable(self) -> int:
        """Leading tokens whose KV may come from the prefix cache: all before the first whose logits are needed."""
        # Those of the last token are needed always, to sample the next one.
        unscored = self.unscored
        return unscored.start if unscored else len(self.tokens) - 1

    def take(self, result: Scored) -> bool:
        """Take what a step computed where logprobs are asked for; return whether there is a new token."""
        self.prompt_logprobs += result.prompt
        if result.token is None:
            return False
        self.logprob = result.token
        self.append(result.token.token_id)
        return True

    def append(self, token: int) -> None:
        """Take a generated token and see whether it ends the request."""
        self.tokens.append(token)
        if token in self.stop_ids or len(self.tokens) >= self.most_tokens:
            self.end_with(token)

    def end_with(self, token: int) -> None:
        """Finish, since `token` is the last: it ends the answer, or there is room for no other."""
        self.finish = Finish("stop", matched=token) if token in self.stop_ids else FULL
