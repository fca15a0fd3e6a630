"""Sends one request and times its answer: one attempt, never a hidden second one."""

import asyncio
import json
import time
from dataclasses import dataclass

import httpx

from sglk.bench.answer import Answer
from sglk.bench.api import AnswerError, Api, error_message
from sglk.bench.prompts import Prompt
from sglk.bench.record import Status
from sglk.bench.sse import SseParser
from sglk.bench.statement import printable

_SHOWN_CHARACTERS = 300
# Below the five seconds after which common servers close idle connections: reusing one at that very moment fails.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)

clock = time.perf_counter
"""Seconds, monotonic; the clock of every latency."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What became of one request; `ended_at` is the last token of a complete answer, else the moment of failure."""

    status: Status
    answer: Answer
    ended_at: float
    error: str | None = None


def open_http(url: str, api_key: str | None) -> httpx.AsyncClient:
    """Return an HTTP client for the server at `url` that ignores proxies, retries nothing and waits without limit."""
    headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=None, limits=_LIMITS, trust_env=False)


class Client:
    """Drives one interface of one server."""

    def __init__(
        self, http: httpx.AsyncClient, api: Api, model: str | None, timeout_s: float, session_header: str | None = None
    ) -> None:
        """Without `session_header` requests do not say which conversation they belong to."""
        self.api = api
        self._session_header = session_header
        self._http = http
        self._model = model
        self._timeout_s = timeout_s

    async def send(self, prompt: Prompt, output_len: int, session: str = "") -> Exchange:
        """Send a prompt and read its answer to the end; failures are part of the result, not exceptions."""
        body = self.api.body(prompt, output_len, self._model)
        answer = Answer(cumulative=self.api.cumulative)
        try:
            await asyncio.wait_for(self._stream(body, answer, session), self._timeout_s)
        except asyncio.TimeoutError:
            return Exchange("timeout", answer, clock(), f"no complete answer within {self._timeout_s:g} s")
        except AnswerError as error:
            return Exchange("failed", answer, clock(), _short(str(error)))
        except httpx.HTTPError as error:
            return Exchange("failed", answer, clock(), _short(f"{type(error).__name__}: {error}"))
        if answer.empty:
            return Exchange("failed", answer, clock(), "the answer has no token")
        return Exchange("ok", answer, clock() if answer.last_at is None else answer.last_at)

    async def _stream(self, body: dict[str, object], answer: Answer, session: str) -> None:
        headers = {self._session_header: session} if self._session_header and session else {}
        async with self._http.stream("POST", self.api.path, json=body, headers=headers) as response:
            if response.status_code != 200:
                reason = _reason(await response.aread()) or response.reason_phrase
                raise AnswerError(f"HTTP {response.status_code}: {reason}")
            parser, done = SseParser(), False
            async for chunk in response.aiter_bytes():
                done = self._take(parser.feed(chunk), answer) or done
            done = self._take(parser.close(), answer) or done
        if not done and answer.finish_reason is None:
            raise AnswerError("the stream ended in the middle of the answer")

    def _take(self, events: list[str], answer: Answer) -> bool:
        """Add the events to the answer; return whether the stream said that it is done."""
        now = clock()
        for data in events:
            if data == "[DONE]":
                return True
            answer.take(self.api.read(_parse(data)), now)
        return False


def _parse(data: str) -> dict[str, object]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise AnswerError(f"the server sent an event that is not JSON: {data!r}") from None
    if (message := error_message(event)) is not None:
        raise AnswerError(f"error in the stream: {message}")
    if not isinstance(event, dict):
        raise AnswerError(f"the server sent an event that is not an object: {data!r}")
    return event


def _reason(body: bytes) -> str:
    text = body.decode("utf-8", errors="replace")
    try:
        return error_message(json.loads(text)) or text
    except (ValueError, RecursionError):
        return text


def _short(text: str) -> str:
    line = printable(text)
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
