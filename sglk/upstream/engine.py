"""An engine in another process or on another machine, as a replica of sglk's router."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx

from sglk.engine.messages import EngineStats, Finish, GenerateRequest, Output
from sglk.upstream.messages import ProxyOutput, ProxyRequest
from sglk.upstream.probe import PROBE_TIMEOUT_S, authorization, connect, token_fault, unhealthy
from sglk.upstream.process import UpstreamProcess
from sglk.upstream.relay import Relay, open_client
from sglk.upstream.scrape import read_stats, steps_of_vllm

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often health and figures are asked for."""

LOST_AFTER = 3
"""So many probes in a row that nobody answers mean that the server is gone; one that is merely slow is not."""

FLUSH_ROUTES = ("/flush_cache", "/reset_prefix_cache")
"""SGLang's (and sglk's) and vLLM's."""

NOTHING_LEFT: Mapping[str, Any] = {
    "running_requests": 0,
    "queued_requests": 0,
    "kv_capacity_tokens": 0,
    "kv_used_tokens": 0,
    "kv_cached_tokens": 0,
    "generation_throughput": 0.0,
}
"""The gauges of a server that is gone."""

OnOutput = Callable[[Output], None]


class UpstreamEngine:
    """Passes requests on to a server. All methods may be called from any thread.

    Its requests are relayed in the event loop that each names.
    """

    simulated = False

    def __init__(
        self,
        name: str,
        url: str,
        *,
        process: UpstreamProcess | None = None,
        key: str | None = None,
        model: str | None = None,
        pause_s: float = 120.0,
        failure: str | None = None,
    ) -> None:
        """Serve by the server at `url`; a stream that says nothing for `pause_s` is given up.

        `model` is what it calls its model, None where only it knows. One that was found not to answer, by its
        `failure`, takes no requests.
        """
        self.name = name
        self.url = url
        self.key = key
        self._process = process
        self._model = model
        self._pause_s = pause_s
        self._failure = failure
        self._silent_since_s: float | None = None
        self._steps: str | None = None
        self._still_since_s: float | None = None
        """Since when it takes no steps, with requests open."""
        self._heard_s = 0.0
        """When the last piece of an answer came."""
        self._doubted = False
        """Whether a request got a 500 since the last look."""
        self._barren = False
        """Whether it gave no token either when it was asked for one after that."""
        self._stats = EngineStats()
        self._submitted: dict[str, None] = {}
        """Requests that are on their way into their event loop."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loops: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._look_on, name=f"sglk-watch-{name}", daemon=True)
        self._watch.start()

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests."""
        return self.failure is None and not self._closing.is_set()

    @property
    def failure(self) -> str | None:
        """Why it takes no more requests."""
        if self._process is not None and self._process.returncode is not None and not self._closing.is_set():
            return self._process.why_it_ended()
        return self._failure

    @property
    def stuck_s(self) -> float:
        """For how long requests have had no answer, while probes have none either or show that it takes no steps."""
        since = self._silent_since_s or self._still_since_s
        return 0.0 if since is None else time.monotonic() - max(since, self._heard_s)

    def submit(self, request: GenerateRequest, on_output: OnOutput) -> None:
        """Pass `request`, a ProxyRequest, on."""
        assert isinstance(request, ProxyRequest)
        self._submitted[request.request_id] = None
        request.loop.call_soon_threadsafe(self._start, request, on_output)

    def abort(self, request_id: str) -> None:
        """End a request early: its connection closes, from which the server learns it; unknown ids are ignored."""
        self._submitted.pop(request_id, None)
        task = self._tasks.get(request_id)
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def stats(self) -> EngineStats:
        """Return what it said of itself last; of one that is gone, what it had counted."""
        return self._stats if self.is_alive else replace(self._stats, **NOTHING_LEFT)

    def flush_cache(self) -> bool:
        """Empty its prefix cache; False where it refuses, as with live requests."""
        with suppress(httpx.HTTPError), connect(self.url, self.key) as http:
            for route in FLUSH_ROUTES:
                if (status := http.post(route).status_code) not in (404, 405):
                    return status == 200
        return False

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """End what is open; and the process, if it is ours."""
        self._closing.set()
        for request_id in [*self._submitted, *self._tasks]:
            self.abort(request_id)
        for loop, client in self._loops.items():
            with suppress(RuntimeError):  # a loop that has ended took its connections along
                asyncio.run_coroutine_threadsafe(client.aclose(), loop)
        if self._process is not None:
            self._process.stop()

    def _start(self, request: ProxyRequest, on_output: OnOutput) -> None:
        """Runs in the request's event loop."""
        if request.request_id not in self._submitted:
            on_output(self._aborted(request))
            return
        del self._submitted[request.request_id]
        client = self._loops.get(request.loop)
        if client is None:
            client = self._loops[request.loop] = open_client(self.url, authorization(self.key))
        relay = Relay(client, request, self.name, self._pause_s, self._doubt)
        task = request.loop.create_task(self._relay(relay, request, on_output))
        self._tasks[request.request_id] = task

    async def _relay(self, relay: Relay, request: ProxyRequest, on_output: OnOutput) -> None:
        last: ProxyOutput | None = None
        try:
            async for output in relay.outputs():
                if output.data:
                    self._heard_s = time.monotonic()
                if output.finish is None:
                    on_output(output)
                else:
                    last = output
        except asyncio.CancelledError:
            last = last or self._aborted(request)
        except Exception as error:
            # Whatever it is, somebody waits for the end.
            logger.exception("%s: request %s could not be passed on", self.name, request.request_id)
            told = f"{self.name}: {type(error).__name__}: {error}"
            last = last or self._ended(request, Finish("error", message=told, doubtful=True))
        finally:
            if self._tasks.get(request.request_id) is asyncio.current_task():
                del self._tasks[request.request_id]
        assert last is not None
        on_output(last)

    def _aborted(self, request: ProxyRequest) -> ProxyOutput:
        return self._ended(request, Finish("abort"))

    def _ended(self, request: ProxyRequest, finish: Finish) -> ProxyOutput:
        return ProxyOutput(request.request_id, (), "", 0, 0, 0, finish, replica=self.name)

    def _doubt(self) -> bool:
        """Have it asked for a token at the next look; returns whether nothing speaks against it so far."""
        self._doubted = True
        return not self._barren

    def _look_on(self) -> None:
        missed = 0
        if self._failure is None:
            self._scrape()
        while not self._closing.wait(LOOK_S):
            looked_s = time.monotonic()
            why, slow = self._look()
            if why is None:
                missed, self._silent_since_s, self._failure = 0, None, None
                self._scrape()
                self._settle_doubt()
                continue
            missed += 1
            self._silent_since_s = self._silent_since_s or looked_s
            # One that is merely slow may come back: how long it may take is for `stuck_s`.
            if missed >= LOST_AFTER and not slow:
                self._failure = f"{self.url}: {why}"

    def _look(self) -> tuple[str | None, bool]:
        """Return what is wrong, if anything, and whether it is that there was no answer in time."""
        try:
            return unhealthy(self.url, self.key), False
        except httpx.TimeoutException:
            return f"no answer within {PROBE_TIMEOUT_S:g} s", True
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__, False

    def _settle_doubt(self) -> None:
        """Ask for a token after a 500: the request may have been wrong, or the server fails whatever it is sent."""
        if not (self._doubted or self._barren):
            return
        self._doubted = False
        # One that is busy or gone is for others to find.
        with suppress(httpx.TransportError):
            why = token_fault(self.url, self._model, self.key, PROBE_TIMEOUT_S)
            if why is not None and not self._barren:
                logger.warning("%s gives no token: %s", self.name, why)
            self._barren = why is not None

    def _scrape(self) -> None:
        text = ""
        # Figures are worth having and not worth failing for.
        with suppress(httpx.HTTPError, ValueError), connect(self.url, self.key) as http:
            response = http.get("/metrics")
            if response.status_code == 200:
                text = response.text
                self._stats = read_stats(text)
        self._note_steps(steps_of_vllm(text))

    def _note_steps(self, steps: str | None) -> None:
        """Watch over vLLM, whose `/health` is answered by a process that knows nothing of one which hangs."""
        if steps is None or steps != self._steps or not self._tasks:
            self._still_since_s = None
        elif self._still_since_s is None:
            self._still_since_s = time.monotonic()
        self._steps = steps
