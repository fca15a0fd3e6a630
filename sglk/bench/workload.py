"""From a WorkloadConfig to the requests themselves: the same seed gives the same requests, everywhere."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any

from sglk.bench.azure import read_azure
from sglk.bench.mooncake import BLOCK, read_mooncake
from sglk.bench.prompts import Draw, Message, Prompt, Vocabulary, pack, system_text, user_text
from sglk.bench.sharegpt import read_sharegpt
from sglk.bench.trace import TraceRequest, checked, digest
from sglk.config.bench_schema import WorkloadConfig
from sglk.config.home import expanded
from sglk.errors import ConfigError

GENERATOR = 1
"""Version of the rules below; part of the workload's hash, so raise it whenever they would give other requests."""

TEXTS = ("chat", "sharegpt")
"""Kinds whose prompts are messages, whatever the interface takes."""

_OF_FILES = ("file", "max_input_len", "max_output_len", "time_scale")

TOKENS_PER_WORD = 1.3
"""For text prompts on a server that was not asked: English under a vocabulary of some ten thousand tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what it adds to the conversation, and how many tokens are asked for."""

    prompt: Prompt
    output_len: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests that follow one another, each with the answers before it; most workloads have one turn."""

    turns: tuple[Turn, ...]
    shared_tokens: int = 0
    """Leading tokens of the first prompt that the workload shares with other conversations on purpose."""
    at_s: float = 0.0
    """When it starts in a trace, seconds after the first one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of one run. No prompt of `warmup` begins a conversation of `measured`."""

    warmup: tuple[Conversation, ...]
    measured: tuple[Conversation, ...]


@dataclass(frozen=True, slots=True)
class Medium:
    """What prompts can be made of on one server."""

    vocabulary: Vocabulary | None = None
    """None = words: the interface takes text, or the vocabulary is unknown."""
    tokens_per_word: float = TOKENS_PER_WORD

    overhead_tokens: int = 0
    """What the chat template adds to every prompt."""

    def words(self, tokens: int) -> int:
        """Return how many words make about `tokens` tokens."""
        return max(1, round(tokens / self.tokens_per_word))

    def least_tokens(self, conversation: Conversation) -> int:
        """Return how many tokens of prompt and answer the last turn has at least; each turn holds those before it.

        Words are a tenth fewer tokens than their average makes them, so that chance refuses no prompt that fits.
        """
        ids = sum(turn.prompt.num_ids + turn.output_len for turn in conversation.turns)
        texts = (message.content for turn in conversation.turns for message in turn.prompt.messages)
        return ids + int(0.9 * self.tokens_per_word * sum(len(text.split()) for text in texts))

    def shared(self, tokens: int) -> int:
        """Return how many leading tokens may come from the cache when `tokens` of them are shared on purpose.

        Words hit a number of tokens only roughly, so text gets a quarter more.
        """
        return tokens if self.vocabulary is not None else round(1.25 * tokens) + self.overhead_tokens


def workload_dict(workload: WorkloadConfig) -> dict[str, Any]:
    """Return the workload's fields and its `hash`, as records carry them."""
    return {**asdict(workload), "hash": workload_hash(workload)}


def workload_hash(workload: WorkloadConfig) -> str:
    """Return the SHA-256 of the resolved workload; its name is a label and does not count."""
    given = asdict(workload)
    # Settings of files that are not used say nothing: workloads without a file are the same as before there were files.
    unused = [each.name for each in fields(workload) if each.name in _OF_FILES and given[each.name] == each.default]
    shape = {key: value for key, value in given.items() if key not in ("name", *unused)}
    if workload.file is not None:
        # What is in it counts, not where it lies.
        shape["file"] = digest(expanded(workload.file))
    text = json.dumps({"generator": GENERATOR, **shape}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plan(workload: WorkloadConfig, medium: Medium, salt: str = "") -> Plan:
    """Draw the warm-up and the measured requests.

    `salt` gives other prompts of the same lengths, so that a prefix cache filled by another run cannot answer them.
    Raises ConfigError if so few prompts are possible that warm-up cannot avoid the measured ones.
    """
    make = _KINDS[workload.kind]
    measured = tuple(make(workload, medium, "measured", salt))
    if not workload.warmup_requests:
        return Plan((), measured)
    taken = {conversation.turns[0].prompt for conversation in measured}
    spare = (c for attempt in range(_ATTEMPTS) for c in make(workload, medium, f"warmup {attempt}", salt))
    warmup: list[Conversation] = []
    for conversation in spare:
        if len(warmup) == workload.warmup_requests:
            break
        if conversation.turns[0].prompt not in taken:
            warmup.append(Conversation(conversation.turns[:1]))
    if len(warmup) < workload.warmup_requests:
        raise ConfigError(
            f"workload.input_len={workload.input_len} leaves no other prompts for "
            f"workload.warmup_requests={workload.warmup_requests}; use longer prompts or workload.warmup_requests=0"
        )
    return Plan(tuple(warmup), measured)


_ATTEMPTS = 100

_TOGETHER, _TOKENS_TOGETHER = 32, 16_384
"""Prompts that are drawn at once, and how many tokens they may have: more would not stay in the processor's cache."""


def _random(workload: WorkloadConfig, medium: Medium, place: str, salt: str) -> Iterator[Conversation]:
    for prompt, output_len in _drawn(workload, medium, place, salt):
        yield Conversation((Turn(prompt, output_len),), medium.shared(0))


def _shared_prefix(workload: WorkloadConfig, medium: Medium, place: str, salt: str) -> Iterator[Conversation]:
    count = workload.num_prefixes
    prefixes = [
        _content(Draw(workload.seed, salt, place, "prefix", number), medium, workload.prefix_len)
        for number in range(count)
    ]
    for index, (rest, output_len) in enumerate(_drawn(workload, medium, place, salt)):
        # Each round uses every prefix once, starting at another one, so that no request always follows the same.
        shift = Draw(workload.seed, place, "shift", index // count).below(count)
        prompt = _joined(prefixes[(index + shift) % count], rest)
        yield Conversation((Turn(prompt, output_len),), medium.shared(workload.prefix_len))


def _chat(workload: WorkloadConfig, medium: Medium, place: str, salt: str) -> Iterator[Conversation]:
    systems = [
        _system(Draw(workload.seed, salt, place, "system", number), medium, workload.prefix_len)
        for number in range(workload.num_prefixes if workload.prefix_len else 0)
    ]
    for first in range(0, workload.num_requests, workload.turns):
        turns = []
        for index in range(first, min(first + workload.turns, workload.num_requests)):
            input_len, output_len = _lengths(workload, place, index)
            text = user_text(Draw(workload.seed, salt, place, index), medium.words(input_len))
            turns.append(Turn(Prompt(messages=(Message("user", text),)), output_len))
        if systems:
            system = systems[first // workload.turns % len(systems)]
            turns[0] = Turn(Prompt(messages=(system, *turns[0].prompt.messages)), turns[0].output_len)
        yield Conversation(tuple(turns), medium.shared(workload.prefix_len))


def _trace(workload: WorkloadConfig, medium: Medium, place: str, salt: str) -> Iterator[Conversation]:
    assert workload.file is not None
    read = {"mooncake": read_mooncake, "azure": read_azure}[workload.kind]
    requests = checked(read(workload.file), workload.file, workload.num_requests, workload.time_scale)
    seen: set[int] = set()
    blocks: dict[int, Prompt] = {}
    for index, request in enumerate(requests):
        input_len, output_len = _cut(workload, request.input_len, request.output_len)
        shared = next((i for i, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
        seen.update(request.blocks)
        if request.blocks:
            prompt = _of_blocks(request, input_len, blocks, lambda name: Draw(workload.seed, salt, place, name), medium)
        else:
            prompt = _content(Draw(workload.seed, salt, place, index), medium, input_len)
        yield Conversation((Turn(prompt, output_len),), medium.shared(min(shared * BLOCK, input_len)), request.at_s)


def _of_blocks(
    request: TraceRequest, tokens: int, known: dict[int, Prompt], draw: Callable[[str], Draw], medium: Medium
) -> Prompt:
    """Return the prompt whose blocks are those of `request`; the same name gives the same tokens or words."""
    prompts = []
    for block in request.blocks[: -(-tokens // BLOCK)]:
        if block not in known:
            known[block] = _content(draw(f"block {block}"), medium, BLOCK)
        prompts.append(known[block])
    if medium.vocabulary is not None:
        whole = Prompt(b"".join([prompt.packed for prompt in prompts]))
        return Prompt(pack(whole.token_ids[:tokens]))
    text = " ".join(prompt.transcript() for prompt in prompts).split()
    return Prompt(messages=(Message("user", " ".join(text[: medium.words(tokens)])),))


def _sharegpt(workload: WorkloadConfig, medium: Medium, place: str, salt: str) -> Iterator[Conversation]:
    assert workload.file is not None
    left = workload.num_requests
    for number, exchanges in enumerate(read_sharegpt(workload.file)):
        turns = []
        for exchange in islice(exchanges, min(workload.turns, left)):
            question = exchange.question.split()
            input_len, output_len = _cut(
                workload,
                *(
                    max(1, round(len(text.split()) * medium.tokens_per_word))
                    for text in (exchange.question, exchange.answer)
                ),
            )
            text = " ".join(question[: medium.words(input_len)])
            turns.append(Turn(Prompt(messages=(Message("user", text),)), output_len))
        if salt or place != "measured":
            # What people really wrote is the same in every run: a code at the beginning makes it unlike any other.
            code = Draw(workload.seed, salt, place, number).code()
            opening = turns[0].prompt.messages[0].content
            turns[0] = Turn(Prompt(messages=(Message("user", f"Case {code}. {opening}"),)), turns[0].output_len)
        yield Conversation(tuple(turns), medium.shared(0))
        left -= len(turns)
        if not left:
            return
    if left == workload.num_requests:
        raise ConfigError(f"workload.file={workload.file!r} has no question with an answer; give another file")
    raise ConfigError(
        f"workload.file={workload.file!r} has fewer questions with answers ({workload.num_requests - left}) than "
        f"workload.num_requests={workload.num_requests}; lower it, or raise workload.turns"
    )


def _cut(workload: WorkloadConfig, input_len: int, output_len: int) -> tuple[int, int]:
    most = workload.max_input_len or sys.maxsize, workload.max_output_len or sys.maxsize
    return min(input_len, most[0]), min(output_len, most[1])


_KINDS: dict[str, Callable[[WorkloadConfig, Medium, str, str], Iterator[Conversation]]] = {
    "random": _random,
    "shared_prefix": _shared_prefix,
    "chat": _chat,
    # Long documents differ from random prompts in their lengths alone.
    "long_prompt": _random,
    "mooncake": _trace,
    "azure": _trace,
    "sharegpt": _sharegpt,
}


def _lengths(workload: WorkloadConfig, place: str, index: int) -> tuple[int, int]:
    """Prompt and answer length of one request; the salt leaves them alone."""
    draw = Draw(workload.seed, place, "length", index)
    return draw.length(workload.input_len, workload.range_ratio), draw.length(workload.output_len, workload.range_ratio)


def _drawn(workload: WorkloadConfig, medium: Medium, place: str, salt: str) -> Iterator[tuple[Prompt, int]]:
    """Yield a prompt of its own for each request, and the length of its answer."""
    together = max(1, min(_TOGETHER, _TOKENS_TOGETHER // workload.input_len))
    for first in range(0, workload.num_requests, together):
        indices = range(first, min(first + together, workload.num_requests))
        lengths = [_lengths(workload, place, index) for index in indices]
        draws = [Draw(workload.seed, salt, place, index) for index in indices]
        prompts = _contents(draws, medium, [input_len for input_len, _ in lengths])
        yield from zip(prompts, [output_len for _, output_len in lengths], strict=True)


def _contents(draws: Sequence[Draw], medium: Medium, lengths: Sequence[int]) -> list[Prompt]:
    if medium.vocabulary is not None:
        return [Prompt(packed) for packed in medium.vocabulary.draw_each(draws, lengths)]
    texts = [user_text(draw, medium.words(tokens)) for draw, tokens in zip(draws, lengths, strict=True)]
    return [Prompt(messages=(Message("user", text),)) for text in texts]


def _content(draw: Draw, medium: Medium, tokens: int) -> Prompt:
    return _contents([draw], medium, [tokens])[0]


def _system(draw: Draw, medium: Medium, tokens: int) -> Message:
    return Message("system", system_text(draw, medium.words(tokens)))


def _joined(first: Prompt, second: Prompt) -> Prompt:
    if second.packed:
        return Prompt(first.packed + second.packed)
    return Prompt(messages=(Message("user", f"{first.transcript()}\n\n{second.transcript()}"),))
