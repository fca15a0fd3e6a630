"""Requests beside each other while something ends: what became of each of them."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import httpx

from tests.upstream.stand_ins import client

REQUESTS = 48
CONCURRENCY = 8
BEFORE = 12
"""Requests that have ended when something happens."""


@dataclass(frozen=True)
class Ended:
    """How a request ended: with all of its answer, or with an error that the client can read."""

    status: int
    whole: bool
    error: str


def under_load(url: str, event: Callable[[], None] | None = None) -> list[Ended]:
    """Send requests, every other one as a stream, and let `event` happen amid them; each is waited for 60 s at most."""
    count, lock = 0, threading.Lock()

    def one(number: int) -> Ended:
        nonlocal count
        ended = _ask(url, number)
        with lock:
            count += 1
            due = count == BEFORE
        if due and event is not None:
            event()
        return ended

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(one, range(REQUESTS)))


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ask(url: str, number: int) -> Ended:
    body = {"model": "tiny", "prompt": f"request {number}", "max_tokens": 32, "ignore_eos": True, "temperature": 0.0}
    with client(url) as http:
        http.timeout = httpx.Timeout(60.0)
        if number % 2:
            answer = http.post("/v1/completions", json=body)
            whole = answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 32
            return Ended(answer.status_code, whole, "" if whole else answer.text)
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            try:
                text = stream.read().decode()
            except httpx.RemoteProtocolError as error:  # cut off amid the answer, which a client sees as well
                return Ended(stream.status_code, False, str(error))
            whole = stream.status_code == 200 and text.rstrip().endswith("data: [DONE]")
            return Ended(stream.status_code, whole, "" if whole else text)
