"""The engine process of a study: kept from trial to trial, replaced only where it must be."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from sglk.config.tune_schema import TuneConfig
from sglk.errors import RunError
from sglk_tuner.space import LIVE_KEYS, ROOT, Params, apply, needs_restart


class Target(Protocol):
    """A launched server, as far as a study drives it."""

    def reconfigure(self, runtime: dict[str, Any]) -> None:
        """Apply runtime values with the weights kept; raises RunError when the engine refuses or is gone."""

    def check(self) -> None:
        """Raise RunError, with the reason and the log, when the process has ended."""

    def close(self) -> None:
        """End the process and everything it started. Harmless when it has ended."""


DEATH_IS_KNOWN_S = 1.0
"""How long after its connections the end of a server shows."""

T = TypeVar("T", bound=Target)

Launch = Callable[[TuneConfig, Path], T]
"""Start a server for a configuration, logging to a file, and return it when it is ready; raises RunError."""


class Engine(Generic[T]):
    """One server at a time, started when it is first needed. Nothing of it outlives the `with` block."""

    def __init__(self, config: TuneConfig, launch: Launch[T], folder: Path) -> None:
        self._config = config
        self._launch = launch
        self._folder = folder
        self._target: T | None = None
        self._params: Params = {}
        self._refused = False
        self._log: Path | None = None
        self.has_started = False
        """Whether any server became ready."""

    @property
    def log(self) -> str | None:
        """Log file of the present or last server, relative to the study's folder."""
        return self._log.name if self._log else None

    def prepare(self, params: Params) -> T:
        """Return a server that runs `params`: the present one if its weights can stay, else a new one.

        Raises RunError when it cannot; a server that refused a change lives on with its old values.
        """
        target = self._target if self._keeps_weights(params) and self._lives() else None
        if target is None:
            self.close()
            self._log = self._next_log()
            target = self._launch(apply(self._config, params), self._log)
            self._target, self.has_started = target, True
        elif params != self._params or self._refused:
            self._refused = True
            with self.deadline(self._config.study.start_timeout_s, "study.start_timeout_s"):
                target.reconfigure({key.removeprefix(ROOT): value for key, value in params.items() if key in LIVE_KEYS})
        self._params, self._refused = params, False
        return target

    @contextmanager
    def deadline(self, limit_s: float, setting: str) -> Iterator[None]:
        """Kill the server when the block takes longer than `limit_s`, and raise RunError naming `setting`.

        A hung server holds its client for as long as it likes; without a server the client comes back at once.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.close()

        timer = threading.Timer(limit_s, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except RunError as error:
            if not expired.is_set():
                raise
            raise _too_slow(limit_s, setting) from error
        finally:
            timer.cancel()
            # A dying server still holds its memory: the next one has to wait for its end.
            timer.join()
        if expired.is_set():
            raise _too_slow(limit_s, setting)

    def cause_of_death(self) -> str | None:
        """Return why the server has ended, or None if it lives.

        A client notices a broken connection before the end of the process is known, so this waits a moment for it.
        """
        give_up = time.monotonic() + DEATH_IS_KNOWN_S
        while (target := self._target) is not None:
            try:
                target.check()
            except RunError as death:
                return str(death)
            if time.monotonic() > give_up:
                break
            time.sleep(0.02)
        return None

    def close(self) -> None:
        """End the server, if there is one."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _lives(self) -> bool:
        try:
            if self._target is not None:
                self._target.check()
        except RunError:
            return False
        return self._target is not None

    def _keeps_weights(self, params: Params) -> bool:
        engine = self._config.engine.name
        slow = [key for key in params if needs_restart(key, engine)]
        return all(params[key] == self._params.get(key) for key in slow)

    def _next_log(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        paths = (self._folder / f"engine-{number:03d}.log" for number in itertools.count(1))
        return next(path for path in paths if not path.exists())

    def __enter__(self) -> "Engine[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _too_slow(limit_s: float, setting: str) -> RunError:
    return RunError(f"no result within {setting}={limit_s:g} s; the engine was killed")
