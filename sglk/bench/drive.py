"""Sends the requests of a plan at the times that the workload's arrivals ask for.

Closed loop: as many conversations in flight as `concurrency`, the next starts when one ends. Poisson and trace:
conversations start at random or recorded times whatever the server does, and latency counts from the intended time, so
that a server that falls behind cannot hide it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from sglk.bench.arrivals import Numbered, arrival_times, numbered, session_of
from sglk.bench.client import Client, Exchange, clock
from sglk.bench.prompts import Message, Prompt
from sglk.bench.record import Phase, RequestRecord
from sglk.bench.workload import Conversation, Turn
from sglk.config.bench_schema import WorkloadConfig

OnDone = Callable[[RequestRecord], None]


async def drive(
    client: Client, workload: WorkloadConfig, conversations: Sequence[Conversation], phase: Phase, on_done: OnDone
) -> None:
    """Send every request of `conversations`; `on_done` gets the record of each as it is complete."""
    run = _Run(client, phase, on_done)
    if workload.arrival != "closed" and phase == "measured":
        await run.open_loop(numbered(conversations), arrival_times(workload, conversations), workload.concurrency)
    else:
        # An open loop need not say how many at a time.
        at_a_time = workload.concurrency or len(conversations)
        await run.closed_loop(numbered(conversations), min(at_a_time, len(conversations)))


class _Run:
    """One phase on its way."""

    def __init__(self, client: Client, phase: Phase, on_done: OnDone) -> None:
        self._client = client
        self._phase = phase
        self._on_done = on_done
        self._started_at = clock()

    async def closed_loop(self, conversations: Iterator[Numbered], concurrency: int) -> None:
        async def worker() -> None:
            for index, conversation in conversations:
                await self._converse(index, conversation, clock())

        await asyncio.gather(*(worker() for _ in range(concurrency)))

    async def open_loop(self, conversations: Iterator[Numbered], offsets_s: list[float], limit: int) -> None:
        gate = asyncio.Semaphore(limit if limit > 0 else len(offsets_s))

        async def arrive(index: int, conversation: Conversation, due: float) -> None:
            await asyncio.sleep(due - clock())
            async with gate:
                await self._converse(index, conversation, due)

        arrivals = zip(conversations, offsets_s, strict=True)
        await asyncio.gather(*(arrive(index, talk, self._started_at + at) for (index, talk), at in arrivals))

    async def _converse(self, index: int, conversation: Conversation, due: float) -> None:
        """Send the turns one after another, each with the answers that the server really gave."""
        prompt, shared_tokens = Prompt(), conversation.shared_tokens
        for place, turn in enumerate(conversation.turns):
            prompt = _extended(prompt, turn)
            exchange = await self._client.send(prompt, turn.output_len, session_of(self._phase, index))
            record = self._note(index + place, turn, prompt, exchange, due, shared_tokens)
            if not record.ok:
                self._give_up(index, place, len(conversation.turns))
                return
            prompt = prompt.then(Message("assistant", exchange.answer.message()))
            shared_tokens = (record.prompt_tokens or 0) + (record.completion_tokens or 0)
            due = clock()

    def _note(
        self, index: int, turn: Turn, prompt: Prompt, exchange: Exchange, due: float, shared_tokens: int
    ) -> RequestRecord:
        answer = exchange.answer
        tokens, estimated = answer.tokens(turn.output_len)
        prompt_tokens = answer.prompt_tokens
        if prompt_tokens is None and prompt.packed:
            prompt_tokens = len(prompt.token_ids)
        record = RequestRecord(
            index=index,
            phase=self._phase,
            status=exchange.status,
            sent_s=_rounded(due - self._started_at),
            ttft_s=None if answer.first_at is None else _rounded(answer.first_at - due),
            e2e_s=_rounded(exchange.ended_at - due),
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            cached_tokens=answer.cached_tokens,
            shared_tokens=shared_tokens,
            estimated=estimated,
            itl_s=[_rounded(gap) for gap in answer.gaps_s],
            finish_reason=answer.finish_reason,
            error=exchange.error,
            asked_tokens=turn.output_len,
        )
        self._on_done(record)
        return record

    def _give_up(self, index: int, failed: int, turns: int) -> None:
        """Count the turns after a failed one as failed: without its answer they cannot be asked."""
        for place in range(failed + 1, turns):
            error = f"not sent: turn {failed + 1} of the conversation failed"
            self._on_done(RequestRecord(index + place, self._phase, "failed", error=error))


def _extended(prompt: Prompt, turn: Turn) -> Prompt:
    return Prompt(prompt.packed + turn.prompt.packed, prompt.messages + turn.prompt.messages)


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
