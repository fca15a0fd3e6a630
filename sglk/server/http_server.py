"""The process around the application: signals, orderly shutdown, and the moment from which it serves."""

import asyncio
import errno
import logging
import math
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from sglk.errors import ConfigError
from sglk.interrupt import stop_signals
from sglk.server import dashboard
from sglk.server.advice import watch
from sglk.server.entry import Entry
from sglk.server.offers import OfferProtocol
from sglk.server.port import port_taken
from sglk.server.tls import tls_files

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Longer than the pools of usual clients keep a connection, so that the client and not the server closes it."""

MAX_HEAD_BYTES = 64 * 1024
"""URL and headers of a request together; a longer head gets 400."""

FLUSH_S = 5
"""After `server.shutdown_timeout_s` requests are aborted; this is for their last words to reach the clients."""

LAST_WORDS_S = 1.0
"""The same after a second signal."""


class HttpServer(uvicorn.Server):
    """Serves a deployment on a bound socket until SIGINT, SIGTERM or SIGHUP.

    The first signal stops accepting and lets running requests finish for `server.shutdown_timeout_s`, then aborts
    them; a second SIGINT or SIGTERM ends them at once. SIGHUP comes beside others, when a terminal closes or a service
    is stopped: it is nobody's impatience, whether it comes first or later. Either way `run_until_stopped` returns
    normally.
    """

    def __init__(self, app: ASGIApp, deployment: Entry, on_ready: Callable[[], None]) -> None:
        self._deployment = deployment
        self._on_ready = on_ready
        self._asked = False
        """Whether SIGINT or SIGTERM has come."""
        self._drain_s = deployment.config.server.shutdown_timeout_s
        certfile, keyfile = tls_files(deployment.config.server)
        super().__init__(
            uvicorn.Config(
                app,
                ssl_certfile=certfile,
                ssl_keyfile=keyfile,
                **parsing(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(self._drain_s) + FLUSH_S,
            )
        )

    def run_until_stopped(self, listener: socket.socket) -> None:
        """Serve on `listener`; shuts the engine down on the way out, and takes signals until that is done."""
        previous = {number: signal.getsignal(number) for number in stop_signals()}
        told = logging.getLogger("uvicorn.error")
        told.addFilter(_is_no_cancellation)
        try:
            _run(self._serve_and_shut_down(listener))
        finally:
            told.removeFilter(_is_no_cancellation)
            for number, handler in previous.items():
                signal.signal(number, handler)

    async def _serve_and_shut_down(self, listener: socket.socket) -> None:
        try:
            # Here, as not every event loop says so when it cannot.
            listener.listen(self.config.backlog)
            await self.serve([listener])
        except OSError as error:
            # Two servers that started at once both bound the port; only the first one can listen on it.
            if error.errno != errno.EADDRINUSE:
                raise
            raise ConfigError(port_taken(self._deployment.config.server.port)) from error
        finally:
            # While the loop still runs: the engine's last messages need it.
            await asyncio.to_thread(self._deployment.fleet.shutdown, 0.0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then tell."""
        await super().startup(sockets)
        if self.started:
            self._deployment.in_background(watch(self._deployment))
            dashboard.watch(self._deployment)
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals as orders to stop; uvicorn itself would die of them again at the end.

        The loop's own handlers would end with the loop, and one more signal would then kill the process.
        """
        loop = asyncio.get_running_loop()

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._stop, number)

        for number in stop_signals():
            signal.signal(number, on_signal)
        yield

    def _stop(self, number: int) -> None:
        bridge, loop = self._deployment.bridge, asyncio.get_running_loop()
        asked_before = self._asked
        self._asked |= number != signal.SIGHUP
        if self._deployment.draining:
            if number == signal.SIGHUP or not asked_before:
                return
            logger.info("second signal: %d requests are cut off", bridge.open_requests)
            self._cut_off()
            loop.call_later(LAST_WORDS_S, self._force)
            return
        logger.info("shutting down: %d requests have %g s to finish", bridge.open_requests, self._drain_s)
        self._deployment.draining = True
        self.should_exit = True
        self._deployment.feed.close()
        loop.call_later(LAST_WORDS_S, self._drop_viewers)
        loop.call_later(self._drain_s, self._cut_off)

    def _cut_off(self) -> None:
        self._deployment.cut_off.set()
        self._deployment.bridge.abort_all()

    def _drop_viewers(self) -> None:
        """End what the dashboard is sent to clients that do not read: nobody shall wait for them."""
        for connection in self.server_state.connections:
            scope = getattr(connection, "scope", None) or {}
            if scope.get("path") == dashboard.EVENTS_ROUTE:
                connection.transport.abort()

    def _force(self) -> None:
        self.force_exit = True


def parsing() -> dict[str, Any]:
    """Return uvicorn's settings for what parses requests, whose heads have a limit."""
    limit = {"h11_max_incomplete_event_size": MAX_HEAD_BYTES}
    if find_spec("httptools") is None:
        return {"http": OfferProtocol, **limit}
    from sglk.server.http_protocol import HttpProtocol

    return {"http": HttpProtocol, **limit}


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run an event loop for `work`: uvloop's, where it is installed."""
    if find_spec("uvloop") is None:
        asyncio.run(work)
        return
    import uvloop

    uvloop.run(work)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """What is still open at the very end is cancelled, which uvicorn reports with a traceback each."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)
