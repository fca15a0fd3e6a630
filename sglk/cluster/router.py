"""One entry to several device groups: by weight between groups, by load or prefix inside a group, and never lost."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from sglk.cluster.choosing import Choosing
from sglk.cluster.flight import Attempt, Flight
from sglk.cluster.group import DeviceGroup, Outcome, Replica, ReplicaEngine
from sglk.cluster.picks import shares_of
from sglk.cluster.weights import WeightHistory, Weights
from sglk.engine.messages import FinishReason, GenerateRequest, Output
from sglk.errors import RequestError, nearest

logger = logging.getLogger(__name__)

NO_GROUP = "no_group"
"""Code of the refusal of a request while no group takes any."""

_OUTCOMES: dict[FinishReason, Outcome] = {
    "stop": "completed",
    "length": "completed",
    "abort": "aborted",
    "error": "refused",
}

OnOutput = Callable[[Output], None]


class Router:
    """Sends each request to a replica, and to another group once when that one fails before it answered anything.

    All methods may be called from any thread. Every request that `submit` accepts gets exactly one message with
    `finish`; `on_output` is called from engines' threads, one call at a time for each request.

    What a replica had begun and fails ends with an `error` without a code while the replica lives on, and with the code
    LOST when it is gone: dead, hung, started again, or drained before the answer was complete.

    A replica's own failures open its breaker; what the client is to blame for never does, and is never tried again.
    Of failures that the request may be to blame for many in a row do, and each is tried again.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        shares: Mapping[str, float],
        *,
        policy: str = "least_loaded",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Route over `groups` by the weights `shares`, which name all of them."""
        self.groups = {group.name: group for group in groups}
        self.history = WeightHistory(shares)
        self._monotonic = clock
        self._lock = threading.RLock()
        self._flights: dict[str, Flight] = {}
        self._picks = 0
        self._choosing = Choosing(self.groups, self.weights.shares, policy)

    @property
    def weights(self) -> Weights:
        """The weights in force."""
        return self.history.current

    @property
    def replicas(self) -> list[Replica]:
        """The replicas of all groups."""
        return [replica for group in self.groups.values() for replica in group.replicas]

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._flights)

    @property
    def shares_taken(self) -> dict[str, float | None]:
        """Shares, 0 to 1, of the latest requests that groups were really sent; None while there were none."""
        return shares_of({name: group.picks.count for name, group in self.groups.items()})

    def shares_by_weight(self, weights: Weights) -> dict[str, float]:
        """Return the share of the traffic, 0 to 1, that each group has by `weights` while all of them are well."""
        counted = {name: weights.shares[name] for name in self._choosing.regular(weights.shares)}
        return {name: counted.get(name, 0.0) / sum(counted.values()) for name in self.groups}

    # Weights and states.

    @property
    def takes_requests(self) -> bool:
        """Whether there is a group that a request can be sent to, however likely it is to fail there."""
        return any(group.alive and self.weights.shares[name] > 0 for name, group in self.groups.items())

    def set_weights(
        self,
        shares: Mapping[str, float],
        source: str,
        reason: str = "",
        *,
        step_of: int | None = None,
        if_number: int | None = None,
    ) -> Weights:
        """Put new weights into force for all groups at once; raises RequestError, and the old ones then hold.

        With `if_number` they replace those weights and no others: WeightsChanged (409) when somebody came before.
        """
        with self._lock:
            return self._enforce(self.history.change(shares, source, reason, step_of=step_of, if_number=if_number))

    def rollback(self, reason: str = "", *, source: str = "rollback", if_number: int | None = None) -> Weights:
        """Return to the weights before the last change; RequestError (409) when there are none, or as `set_weights`."""
        with self._lock:
            return self._enforce(self.history.rollback(reason, source=source, if_number=if_number))

    def group(self, name: str) -> DeviceGroup:
        """Return the group of that name; RequestError (404) when there is none."""
        if name not in self.groups:
            hint = nearest(name, self.groups) or f"; there are {', '.join(self.groups)}"
            raise RequestError(
                f"no device group is named {name!r}{hint}", param="name", code="unknown_group", status=404
            )
        return self.groups[name]

    def drain(self, name: str, *, force: bool = False) -> DeviceGroup:
        """Send no request to a group from now on; its running ones go on. Harmless when repeated.

        Raises RequestError (409) when no other group is left to take the traffic, unless `force`.
        """
        group = self.group(name)
        with self._lock:
            if group.state == "serving":
                if not force and not any(self._serves(other) for other in self.groups.values() if other is not group):
                    message = f"no other group can take the traffic of {name!r}; use force to drain it all the same"
                    raise RequestError(message, code="last_group", status=409)
                group.state = "draining"
                logger.warning("group %s is draining, %d requests are open", name, group.open_requests)
            self._note_drained(group)
        return group

    def undrain(self, name: str) -> DeviceGroup:
        """Let a group take requests again."""
        group = self.group(name)
        with self._lock:
            if group.state != "serving":
                logger.warning("group %s takes requests again", name)
            group.state = "serving"
        return group

    def expire(self, name: str, message: str) -> int:
        """Take the open requests of a group off it; returns how many.

        What has not begun goes to another group, as after a failure; the others end with the error `message`.
        """
        group = self.group(name)
        return sum(self._expire(flight, group.replicas, message) for flight in self._flights_of(group.replicas))

    # Requests.

    def submit(self, request: GenerateRequest, on_output: OnOutput) -> None:
        """Send `request` to a replica; raises RequestError when it is refused or nobody can take it (503)."""
        flight = Flight(request, on_output, self._monotonic())
        with self._lock:
            if request.request_id in self._flights:
                raise RequestError(f"request id {request.request_id!r} is in use; choose another one", param="rid")
            self._flights[request.request_id] = flight
        with flight.lock:
            try:
                self._launch(flight)
            except BaseException:
                flight.attempt = None
                self._forget(flight)
                raise

    def abort(self, request_id: str) -> None:
        """End a request early; unknown ids are ignored."""
        flight = self._flights.get(request_id)
        if flight is not None:
            with flight.lock:
                flight.aborted = True
                if flight.attempt is not None:
                    flight.attempt.replica.engine.abort(request_id)

    def give_up(self, replica: Replica, error: str) -> None:
        """Take `replica` out: its requests go to another group, or end with an error where they had begun."""
        with self._lock:
            replica.breaker.trip(error)
            if replica.state == "serving":
                replica.state = "failed"
            replica.seen.clear()
        logger.error("replica %s is taken out: %s", replica.name, error)
        for flight in self._flights_of([replica]):
            with flight.lock:
                if flight.attempt is not None and flight.attempt.replica is replica:
                    self._fail(flight.attempt, f"replica {replica.name}: {error}")

    def bring_back(self, replica: Replica, engine: ReplicaEngine) -> None:
        """Let a replica that was given up serve again with a new engine; its first request is a probe."""
        with self._lock:
            replica.engine = engine
            replica.counters.restarts += 1
            replica.breaker.probe_next()
            replica.state = "serving"
        logger.warning("replica %s is back, and takes a probe", replica.name)

    # Below: one request's way.

    def _launch(self, flight: Flight) -> None:
        """Start an attempt on a replica that takes it; raises RequestError when none does."""
        refused_by: list[Replica] = []
        while True:
            attempt = self._board(flight)
            try:
                attempt.replica.engine.submit(flight.request, partial(self._receive, attempt))
            except RequestError as error:
                if error.status < 500:
                    self._settle(attempt, "refused")
                    raise
                self._note_failure(attempt, str(error))
                refused_by.append(attempt.replica)
                flight.avoid.add(attempt.replica)
            except BaseException:
                self._settle(attempt, "failed", "submit failed")
                raise
            else:
                self._note_moved(refused_by)
                return

    def _board(self, flight: Flight) -> Attempt:
        with self._lock:
            replica = self._choosing.choose(flight.request, flight.avoid)
            if replica is None:
                raise RequestError(self._nobody(), code=NO_GROUP, status=503)
            self._picks += 1
            replica.last_pick = self._picks
            replica.counters.picks += 1
            self._group_of(replica).picks.add()
            replica.open_requests += 1
            if flight.attempt is not None:
                flight.moved_from = flight.attempt.replica.name
            late_s = self._monotonic() - flight.received_s
            flight.attempt = Attempt(flight, replica, replica.breaker.enter(), late_s)
            return flight.attempt

    def _serves(self, group: DeviceGroup) -> bool:
        return group.well and self.weights.shares[group.name] > 0

    def _nobody(self) -> str:
        told = (f"{name} {group.trouble or 'has weight 0'}" for name, group in self.groups.items())
        return f"no device group takes requests now ({', '.join(told)}); try again later"

    def _receive(self, attempt: Attempt, output: Output) -> None:
        flight = attempt.flight
        with flight.lock:
            if flight.attempt is not attempt:
                return  # a late message of a replica that was given up
            output = attempt.told(output)
            flight.note(output, self._monotonic())
            finish = output.finish
            if finish is None:
                flight.on_output(output)
            elif finish.reason == "error" and finish.code is None:
                self._fail(attempt, finish.message or "the engine failed", doubtful=finish.doubtful)
            else:
                self._end(attempt, output)

    def _end(self, attempt: Attempt, output: Output) -> None:
        assert output.finish is not None
        outcome = _OUTCOMES[output.finish.reason]
        self._settle(attempt, outcome)
        if outcome == "completed":
            self._group_of(attempt.replica).recent.add(attempt.flight.end(self._monotonic(), failed=False))
        attempt.flight.attempt = None
        self._forget(attempt.flight)
        attempt.flight.on_output(output)

    def _fail(self, attempt: Attempt, error: str, *, doubtful: bool = False) -> None:
        """The replica failed the request: on to another group, if that can go unnoticed."""
        flight = attempt.flight
        self._note_failure(attempt, error, doubtful=doubtful)
        if flight.movable:
            flight.moved = True
            if self._move(flight, attempt.replica):
                return
            flight.context.run(logger.info, "request %s: nobody else can take it", flight.request.request_id)
        replica = attempt.replica
        last = flight.failure(error, replica.name) if replica.alive else flight.loss(error, replica.name)
        flight.attempt = None
        self._forget(flight)
        flight.on_output(last)

    def _move(self, flight: Flight, failed: Replica) -> bool:
        """Send a request to another group, or else to another replica of the same one; False when there is none."""
        for avoided in (self._group_of(failed).replicas, [failed]):
            flight.avoid = {*avoided}
            try:
                self._launch(flight)
            except RequestError:
                continue
            self._note_moved([failed])
            return True
        return False

    def _expire(self, flight: Flight, replicas: Iterable[Replica], message: str) -> bool:
        with flight.lock:
            attempt = flight.attempt
            if attempt is None or attempt.replica not in replicas:
                return False
            self._settle(attempt, "aborted")
            attempt.replica.engine.abort(flight.request.request_id)
            if flight.movable:
                flight.moved = True
                if self._move(flight, attempt.replica):
                    return True
            flight.attempt = None
            self._forget(flight)
            flight.on_output(flight.loss(message, attempt.replica.name))
            return True

    def _note_failure(self, attempt: Attempt, error: str, *, doubtful: bool = False) -> None:
        flight, replica = attempt.flight, attempt.replica
        flight.context.run(
            logger.warning, "replica %s failed request %s: %s", replica.name, flight.request.request_id, error
        )
        self._settle(attempt, "failed", error, doubtful=doubtful)
        self._group_of(replica).recent.add(flight.end(self._monotonic(), failed=True))

    def _note_moved(self, failed: Iterable[Replica]) -> None:
        with self._lock:
            for replica in failed:
                replica.counters.moved += 1

    def _settle(self, attempt: Attempt, outcome: Outcome, error: str = "", *, doubtful: bool = False) -> None:
        """Count the end of an attempt, and tell the breaker."""
        replica = attempt.replica
        with self._lock:
            replica.counters.ended[outcome] += 1
            replica.open_requests -= 1
            if outcome == "completed":
                replica.breaker.succeed(attempt.probe)
            elif doubtful:
                replica.breaker.doubt(error, attempt.probe)
            elif outcome == "failed":
                replica.breaker.fail(error, attempt.probe)
            else:
                replica.breaker.leave(attempt.probe)
            self._note_drained(self._group_of(replica))

    def _forget(self, flight: Flight) -> None:
        with self._lock:
            self._flights.pop(flight.request.request_id, None)

    def _flights_of(self, replicas: Iterable[Replica]) -> list[Flight]:
        wanted = set(replicas)
        with self._lock:
            flights = list(self._flights.values())
        # A flight may end meanwhile, hence read once.
        attempts = [(flight, flight.attempt) for flight in flights]
        return [flight for flight, attempt in attempts if attempt is not None and attempt.replica in wanted]

    def _group_of(self, replica: Replica) -> DeviceGroup:
        return self.groups[replica.name.rpartition("/")[0]]

    def _note_drained(self, group: DeviceGroup) -> None:
        if group.state == "draining" and group.open_requests == 0:
            group.state = "drained"
            logger.warning("group %s is drained", group.name)

    def _enforce(self, weights: Weights) -> Weights:
        self._choosing.follow(weights.shares)
        told = ", ".join(f"{name} {share:g}" for name, share in weights.shares.items())
        logger.warning(
            "weights %d by %s: %s%s",
            weights.number,
            weights.source,
            told,
            f" ({weights.reason})" * bool(weights.reason),
        )
        return weights
