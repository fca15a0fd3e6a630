"""Takes out replicas that hang or die, starts them again in the background, and lets them back through probes."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sglk.cluster.group import Replica, ReplicaEngine
from sglk.cluster.router import Router
from sglk.errors import SglkError

logger = logging.getLogger(__name__)

Launch = Callable[[], ReplicaEngine]
"""Loads and starts a replica's engine and sees it generate a token; raises SglkError."""


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """When a replica is taken for hung, and how soon it is started again."""

    step_timeout_s: float = 120.0
    """A step that takes longer is one that never ends."""
    first_wait_s: float = 1.0
    """Before the first restart; doubles with each one that does not help."""
    longest_wait_s: float = 60.0
    sick_s: float = 30.0
    """How long a replica may fail all that it is sent, probes included, before it is started again."""


FAILED_PROBES = 2
"""Probes that must have failed before a replica that lives is started again: one may have been a bad request."""


@dataclass(slots=True)
class _Care:
    """What is known of one replica's restarts."""

    wait_s: float
    due_s: float = 0.0
    back_s: float = 0.0
    """When it last came back."""
    thread: threading.Thread | None = None


class Supervisor:
    """Cares for the replicas of a router. `tick` is called from time to time by one thread."""

    def __init__(
        self,
        router: Router,
        launches: Mapping[str, Launch],
        settings: SupervisorSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start replicas again by `launches`, whose keys are their names."""
        self._router = router
        self._launches = launches
        self._settings = settings or SupervisorSettings()
        self._clock = clock
        self._closing = False
        self._lock = threading.Lock()
        """Held while a replica gets its new engine, and when that is over for good."""
        self._care = {name: _Care(self._settings.first_wait_s) for name in launches}

    def tick(self) -> None:
        """Look at every replica once."""
        for replica in self._router.replicas:
            if replica.state == "serving":
                self._watch(replica)
            elif replica.state == "failed" and self._clock() >= self._care[replica.name].due_s:
                self._restart(replica)

    def restart(self, group: str) -> None:
        """Start the replicas of a group again, at the next tick; what they are doing is given up."""
        for replica in self._router.group(group).replicas:
            if replica.state == "serving":
                self._router.give_up(replica, "a restart was asked for")
            self._care[replica.name].due_s = 0.0

    def stop(self) -> None:
        """Let no replica come back from now on; what is being started ends as soon as it is."""
        with self._lock:
            self._closing = True

    def join(self, timeout_s: float) -> None:
        """Wait for what is being started, `timeout_s` for each."""
        for care in self._care.values():
            if care.thread is not None:
                care.thread.join(timeout_s)

    @property
    def starting(self) -> list[str]:
        """Names of the replicas that are being started at the moment."""
        return [name for name, care in self._care.items() if care.thread is not None and care.thread.is_alive()]

    def _watch(self, replica: Replica) -> None:
        engine = replica.engine
        if not engine.is_alive:
            self._router.give_up(replica, engine.failure or "the engine stopped")
        elif engine.stuck_s > self._settings.step_timeout_s:
            limit_s = self._settings.step_timeout_s
            told = f"nothing has come from it for {engine.stuck_s:.3g} s; router.step_timeout_s={limit_s:g}"
            self._router.give_up(replica, told)
        elif self._only_fails(replica):
            told = f"nothing but failures for {replica.breaker.sick_s:.3g} s, the last: {replica.breaker.last_error}"
            self._router.give_up(replica, told)
        else:
            self._note_health(replica)
            return
        self._wait_longer(self._care[replica.name])

    def _only_fails(self, replica: Replica) -> bool:
        """Whether a replica that lives should be started again; none that has anything left to lose."""
        breaker = replica.breaker
        lasting = breaker.sick_s > self._settings.sick_s and breaker.failed_probes >= FAILED_PROBES
        return lasting and not replica.open_requests

    def _note_health(self, replica: Replica) -> None:
        """Forget the failures of one that has stayed well for as long as the next wait would be."""
        care = self._care.get(replica.name)
        if care and replica.breaker.state == "closed" and self._clock() - care.back_s >= care.wait_s:
            care.wait_s = self._settings.first_wait_s

    def _wait_longer(self, care: _Care) -> None:
        care.due_s = self._clock() + care.wait_s
        care.wait_s = min(2 * care.wait_s, self._settings.longest_wait_s)

    def _restart(self, replica: Replica) -> None:
        replica.state = "restarting"
        thread = threading.Thread(
            target=self._relaunch, args=(replica,), name=f"sglk-restart-{replica.name}", daemon=True
        )
        self._care[replica.name].thread = thread
        thread.start()

    def _relaunch(self, replica: Replica) -> None:
        care = self._care[replica.name]
        try:
            # What the old engine holds on the device must be free before the new one asks for it.
            replica.engine.shutdown(0.0)
            engine = self._launches[replica.name]()
        # A device in trouble raises anything; the next attempt may find it well.
        except Exception as error:  # noqa: BLE001
            reason = str(error) if isinstance(error, SglkError) else f"{type(error).__name__}: {error}"
            wait_s = care.wait_s
            self._wait_longer(care)
            logger.error("replica %s did not start again, next attempt in %g s: %s", replica.name, wait_s, reason)
            replica.breaker.last_error = reason
            replica.state = "failed"
            return
        with self._lock:
            if not self._closing:
                care.back_s = self._clock()
                self._router.bring_back(replica, engine)
                return
        engine.shutdown(0.0)
