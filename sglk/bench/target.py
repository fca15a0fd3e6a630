"""What is measured: a server with a URL, running already or started for the occasion."""

import json
import re
import ssl
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx

from sglk.bench.api import error_message
from sglk.bench.statement import counters, items, named, printable, statement
from sglk.child import ChildProcess, http_ok
from sglk.errors import RunError, SglkError

_CALL_TIMEOUT_S: Final = 30.0
_FLUSH_TIMEOUT_S: Final = 10.0
_RECONFIGURE_TIMEOUT_S: Final = 600.0
_BUSY: Final = frozenset({400, 409, 503})
"""What servers answer to a flush while requests are live: SGLang 400, sglk 409."""
READY_LINE: Final = re.compile(r"^SGLK_READY (\{.*\})$", re.MULTILINE)
"""What `sglk serve` prints for a parent process, with its URL."""
_REFUSED: Final = "sglk: error: "
"""Begins the line in which `sglk serve` says why it does not start."""
_NOT_SERVE: Final = frozenset({"workload", "bench", "search", "objective", "study"})


class ServerRefused(RunError):
    """`sglk serve` refuses the configuration that it was started with, as whoever typed it may mend."""

    exit_code = SglkError.exit_code


class Target:
    """A running server. As a context manager it lets go of the server on the way out.

    `api_key` opens the generation routes and `admin_api_key` the admin routes; the latter defaults to the former.
    """

    launched = False

    def __init__(self, url: str, *, api_key: str | None = None, admin_api_key: str | None = None) -> None:
        self.url = base_url(url)
        self.api_key = api_key
        self._admin_key = admin_api_key or api_key

    def models(self) -> list[str]:
        """Return the names of the served models, as `/v1/models` lists them."""
        entries = items((self._get("/v1/models") or {}).get("data"))
        names = [(named(entry) or {}).get("id") for entry in entries]
        return [name for name in names if isinstance(name, str) and name]

    def model_info(self) -> dict[str, Any] | None:
        """Return SGLang's description of the model; None from servers without `/model_info`."""
        return self._get("/model_info")

    def server_info(self) -> dict[str, Any] | None:
        """Return the server's description of itself; None from servers without `/server_info`."""
        return self._get("/server_info")

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False if the server cannot.

        Requests that have just been given up may still hold the cache, so a refusal is tried again for some seconds.
        """
        deadline = time.monotonic() + _FLUSH_TIMEOUT_S
        while True:
            status = self._call("POST", "/flush_cache", key=self._admin_key).status_code
            if status == 200:
                return True
            if status not in _BUSY or time.monotonic() >= deadline:
                return False
            time.sleep(0.1)

    def reconfigure(self, runtime: dict[str, Any]) -> None:
        """Apply runtime values without loading the weights again; live requests are aborted.

        Raises RunError if the server refuses.
        """
        response = self._call(
            "POST", "/admin/runtime?force=true", body=runtime, key=self._admin_key, timeout_s=_RECONFIGURE_TIMEOUT_S
        )
        if response.status_code != 200:
            raise RunError(f"the server refused runtime values {runtime}: {_said(response)}")

    def metrics(self) -> dict[str, float]:
        """Return the engine's counters without prefix and suffix, summed over their labels; empty if there are none."""
        response = self._call("GET", "/metrics", key=self.api_key)
        if response.status_code != 200:
            return {}
        return counters(response.text)

    def check(self) -> None:
        """Raise RunError if the server is known to have ended; another's server is none of our business."""

    def close(self) -> None:
        """Let go of the server; another's server keeps running."""

    def _get(self, path: str) -> dict[str, Any] | None:
        response = self._call("GET", path, key=self.api_key)
        if response.status_code in (401, 403):
            raise RunError(f"{self.url} refused {path}: {_said(response)}; set bench.api_key")
        if response.status_code != 200:
            return None
        return statement(response.text) or None

    def _call(
        self, method: str, path: str, *, key: str | None, body: object = None, timeout_s: float = _CALL_TIMEOUT_S
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # One client per call: another thread may close the target at any moment, and idle connections grow stale.
        try:
            with httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False, verify=_tls()) as http:
                return http.request(method, path, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._on_silence()
            reason = str(error) or type(error).__name__
            raise RunError(f"cannot reach {self.url}{path}: {reason}; is the server running?") from error

    def _on_silence(self) -> None:
        """Raise RunError with a better reason than that a call got no answer, if there is one."""

    def __enter__(self) -> "Target":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LaunchedServer(Target):
    """`sglk serve` with `overrides`, on a free loopback port, ready when the constructor returns.

    Its output goes to `log`. Raises RunError if it does not become ready within `timeout_s`, ServerRefused if it is
    not meant to: what it was given is wrong. It ends with `close`, and
    at the latest with this process.
    """

    launched = True

    def __init__(
        self,
        overrides: Sequence[str],
        *,
        log: Path,
        config_dir: str | Path | None = None,
        timeout_s: float = 600.0,
        api_key: str | None = None,
        admin_api_key: str | None = None,
    ) -> None:
        self._child = ChildProcess(serve_command(overrides, config_dir), log=log, label="the server")
        try:
            deadline = time.monotonic() + timeout_s
            ready = self._child.wait_for_line(READY_LINE, timeout_s=timeout_s).group(1)
            super().__init__(json.loads(ready)["url"], api_key=api_key, admin_api_key=admin_api_key)
            self._child.wait_until(lambda: http_ok(f"{self.url}/health"), timeout_s=deadline - time.monotonic())
        except RunError as error:
            self._child.stop()
            if self._child.returncode == SglkError.exit_code and (why := self._reason()) is not None:
                raise ServerRefused(f"the server refuses to start: {why} (log: {log})") from error
            raise
        except BaseException:
            self._child.stop()
            raise

    @property
    def log(self) -> Path:
        """The server's output."""
        return self._child.log

    @property
    def pid(self) -> int:
        """Pid of the guardian of the server; the server ends with it."""
        return self._child.pid

    def check(self) -> None:
        """Raise RunError, with its last words and the log, if the server has ended."""
        self._child.check()

    def close(self) -> None:
        """End the server and everything it started. Harmless when it has ended."""
        self._child.stop()

    def _reason(self) -> str | None:
        said = [line for line in self._child.tail() if line.startswith(_REFUSED)]
        return said[-1].removeprefix(_REFUSED) if said else None

    def _on_silence(self) -> None:
        # A process that dies closes its port a moment before its end can be seen.
        self._child.check(within_s=1.0)


def base_url(url: str) -> str:
    """Return the address of the server's root, also when that of its OpenAI API is given."""
    return url.rstrip("/").removesuffix("/v1")


def serve_command(overrides: Sequence[str], config_dir: str | Path | None = None) -> list[str]:
    """Return the command that serves what `overrides` of `sglk bench` or `sglk tune` describe."""
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    address = ["server.host=127.0.0.1", "server.port=0"]
    return [sys.executable, "-u", "-m", "sglk", "serve", *folder, *serve_overrides(overrides), *address]


def serve_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that `sglk serve` knows: all but those of the workload, the load and the search.

    The address goes too: the server gets a free port of its own.
    """
    keys = [override_key(override) for override in overrides]
    return [
        override
        for key, override in zip(keys, overrides, strict=True)
        if key.partition(".")[0] not in _NOT_SERVE and key not in ("server.host", "server.port")
    ]


def override_key(override: str) -> str:
    """Return the key that an override sets, without the signs for adding and removing in front of it."""
    return override.partition("=")[0].lstrip("+~")


def _said(response: httpx.Response) -> str:
    message = error_message(statement(response.text)) or response.text
    return f"HTTP {response.status_code}: {printable(message)[:300]}"


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
