"""A small load on a server of the deployment that is calibrated: it tells what serving adds to the engine's steps."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx

from sglk.bench.api import GenerateApi, error_message
from sglk.bench.client import Client, Exchange, clock, open_http
from sglk.bench.prompts import Draw, Prompt, Vocabulary, pack
from sglk.bench.statement import counters, printable
from sglk.bench.target import LaunchedServer, override_key
from sglk.config.calibrate_schema import CalibrateConfig
from sglk.errors import RunError
from sglk.planner.calibration.record import Entry, ServingRecord
from sglk.planner.calibration.serving import DecodeRun, Refusal, serving_time

_ROUNDS = 4
_TIMEOUT_S = 600.0

_PROMPT, _ANSWER = 2, 40
"""Prompts so short that it makes no difference how many of them a step takes."""
_MOST_ROWS = 32
"""What more requests at a time add follows from the rise."""
_JOINING, _LEAVING = 8, 4
"""Gaps at the beginning and the end of an answer in which not all requests decode."""

_REFUSALS = 8
"""Requests in a round that come one at a time, for either length of prompts."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ServingRuns:
    """The server, and who asks it."""

    config: CalibrateConfig
    words: Sequence[str]
    """What the user typed."""
    config_dir: Path | None
    say: Say
    on_step: Callable[[int, int], None] = lambda done, total: None

    def measure(self, entry: Entry) -> ServingRecord:
        """Return what clients see beyond the steps; raises RunError where the server does not serve."""
        handle, name = tempfile.mkstemp(prefix="sglk-calibrate-", suffix=".log")
        log = Path(name)
        os.close(handle)
        self.say("starting a server")
        words = [word for word in self.words if override_key(word).partition(".")[0] != "calibrate"]
        try:
            with LaunchedServer([*words, "profiles=none"], log=log, config_dir=self.config_dir) as server:
                decodes, refusals = asyncio.run(self._runs(server.url, entry))
                server.check()
        except KeyboardInterrupt:
            log.unlink()
            raise
        log.unlink()
        return serving_time(decodes, refusals)

    async def _runs(self, url: str, entry: Entry) -> tuple[list[DecodeRun], list[Refusal]]:
        counts, longest = self._counts(), _longest(entry)
        total = _ROUNDS * (len(counts) + 1)
        self.say(f"serving {' and '.join(map(str, counts))} requests at a time")
        decodes: list[DecodeRun] = []
        refusals: list[Refusal] = []
        began, done = time.monotonic(), count(1)
        async with open_http(url, self.config.server.api_key) as http:
            asked = _Questions(http, Vocabulary(entry.numbers["vocab_size"]))
            await asked.warm_up(counts[-1])
            for round_ in range(_ROUNDS):
                if round_ and time.monotonic() - began > self.config.calibrate.time_s:
                    break
                for rows in counts:
                    decodes.append(await asked.together(rows, streams_first=round_ % 2 == 1))
                    self.on_step(next(done), total)
                for length in (1, longest):
                    refusals += [await asked.refused(length) for _ in range(_REFUSALS)]
                self.on_step(next(done), total)
        return decodes, refusals

    def _counts(self) -> list[int]:
        most = min(_MOST_ROWS, self.config.runtime.max_running_requests)
        return sorted({1, max(1, most // 4), max(1, most // 2), most})


def _longest(entry: Entry) -> int:
    """Return the tokens of the longest context that a step was measured with."""
    return max(max([*point.decodes, *(context for _, context in point.prefills)]) for point in entry.points)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What answers that came whole have taken."""

    mean_s: float
    """From their sending to the answer."""
    idle_s: float
    """Of the time to the last of them, outside steps."""
    steps: int


@dataclass(frozen=True, slots=True)
class _Streamed:
    """What streams have taken."""

    mean_s: float
    """From their sending to the last token."""
    gap_s: float
    """Between two tokens of one of them."""


class _Questions:
    """Requests to one server, and the times of its answers."""

    def __init__(self, http: httpx.AsyncClient, vocabulary: Vocabulary) -> None:
        self._http = http
        self._api = GenerateApi()
        self._client = Client(http, self._api, None, _TIMEOUT_S)
        self._vocabulary = vocabulary
        self._numbers = count()

    async def warm_up(self, most: int) -> None:
        """Have the engine prepare what it keeps for each number of rows, and the server what it does for a refusal."""
        await self._whole([2 + row for row in range(most)])
        await self.refused(1)

    async def together(self, rows: int, *, streams_first: bool) -> DecodeRun:
        """Ask for `rows` answers that come whole and for as many streams, one after the other."""
        if streams_first:
            streamed = await self._streamed(rows)
            whole = await self._whole([_ANSWER] * rows)
        else:
            whole = await self._whole([_ANSWER] * rows)
            streamed = await self._streamed(rows)
        streaming_s = (streamed.mean_s - whole.mean_s) / (_ANSWER - 1)
        return DecodeRun(rows, streamed.gap_s, streaming_s, whole.idle_s, whole.steps)

    async def refused(self, length: int) -> Refusal:
        """Send a prompt of `length` tokens the last of which does not exist."""
        prompt = Prompt(self._vocabulary.draw(Draw("calibration"), length - 1) + pack([self._vocabulary.size]))
        began = clock()
        response = await self._post(self._api.body(prompt, 1, None))
        if response.status_code != 400:
            raise RunError(f"a prompt with token {self._vocabulary.size} came to {_said(response)}")
        return Refusal(length, clock() - began)

    async def _whole(self, lengths: Sequence[int]) -> _Whole:
        """Ask for answers of these lengths at a time that come whole."""

        async def one(length: int) -> float:
            response = await self._post({**self._api.body(self._prompt(), length, None), "stream": False})
            if response.status_code != 200:
                raise RunError(f"a request failed: {_said(response)}")
            return clock()

        before = await self._counters()
        began = clock()
        ends = await asyncio.gather(*map(one, lengths))
        after = await self._counters()
        steps, busy_s = (after[name] - before[name] for name in ("engine_steps", "engine_busy_seconds"))
        return _Whole(statistics.fmean(ends) - began, max(ends) - began - busy_s, round(steps))

    async def _streamed(self, rows: int) -> _Streamed:
        """Ask for `rows` streams at a time."""
        began = clock()
        streams = await asyncio.gather(*(self._stream() for _ in range(rows)))
        # While requests join and leave the gaps are others; in between their mean counts, as it does for clients.
        gap_s = statistics.fmean(gap for stream in streams for gap in stream.answer.gaps_s[_JOINING:-_LEAVING])
        return _Streamed(statistics.fmean(stream.ended_at for stream in streams) - began, gap_s)

    async def _counters(self) -> dict[str, float]:
        """Return what the server has counted."""
        try:
            return counters((await self._http.get("/metrics", timeout=_TIMEOUT_S)).text)
        except httpx.HTTPError as error:
            raise RunError(f"the server's metrics cannot be read: {str(error) or type(error).__name__}") from error

    async def _stream(self) -> Exchange:
        exchange = await self._client.send(self._prompt(), _ANSWER)
        if exchange.status != "ok" or len(exchange.answer.gaps_s) < _ANSWER - 1:
            raise RunError(f"a request failed: {exchange.error or 'its tokens came several at a time'}")
        return exchange

    async def _post(self, body: dict[str, object]) -> httpx.Response:
        try:
            response = await self._http.post(self._api.path, json=body, timeout=_TIMEOUT_S)
            # Read as a client does.
            response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RunError(f"a request failed: {str(error) or type(error).__name__}") from error
        return response

    def _prompt(self) -> Prompt:
        return Prompt(self._vocabulary.draw(Draw("calibration", next(self._numbers)), _PROMPT))


def _said(response: httpx.Response) -> str:
    return f"HTTP {response.status_code}: {error_message(response.json()) or printable(response.text)}"
