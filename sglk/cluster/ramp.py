"""A canary ramp: traffic moves to a group step by step, and back at once when the limits break."""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sglk.cluster.group import DeviceGroup
from sglk.cluster.router import Router
from sglk.cluster.slo import Breach, Limit, broken
from sglk.cluster.weights import WeightsChanged
from sglk.errors import RequestError

logger = logging.getLogger(__name__)

RampState = Literal["moving", "done", "rolled_back", "stopped"]

GROUP_DOWN = "group_down"

MIN_REQUESTS = 20
"""Requests since the last step before the group is judged by its latencies and errors; without them no step follows."""


@dataclass(frozen=True, slots=True)
class RampPlan:
    """Where a ramp goes, and how fast."""

    group: str
    to: float
    """Share of the traffic at the end, per cent."""
    step: float
    """Added at each step, per cent of the traffic."""
    every_s: float
    """Time between two steps at least; the limits are judged by what has ended since the last one."""
    limits: tuple[Limit, ...] = ()
    min_requests: int = MIN_REQUESTS

    def check(self) -> None:
        """Raise RequestError for what is no plan."""
        for name, value, least, most in (
            ("to", self.to, 0.0, 100.0),
            ("step", self.step, 0.0, 100.0),
            ("every_s", self.every_s, 0.0, math.inf),
        ):
            if not (least < value <= most and math.isfinite(value)) and not (name == "to" and value == 0):
                bounds = f"above {least:g}" + (f" and at most {most:g}" if math.isfinite(most) else "")
                raise RequestError(f"`{name}` is {value:g}, it must be {bounds}", param=name, code="invalid_value")


class Ramp:
    """One ramp on its way. `tick` is called from time to time; the caller lets one thread in at a time."""

    def __init__(self, router: Router, plan: RampPlan, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the first step; raises RequestError when the plan cannot be followed."""
        plan.check()
        self.plan = plan
        self.state: RampState = "moving"
        self.reason = ""
        """Why it ended, or what it waits for."""
        self.broken_by = ""
        """What made it go back: a figure of its limits, or GROUP_DOWN."""
        self._router = router
        self._clock = clock
        self._group = router.group(plan.group)
        base = router.weights
        self._base = self._last = base.number
        # Those on standby have no part in the traffic that is shared out.
        self._origin = {name: share for name, share in base.shares.items() if not router.groups[name].standby}
        _check_room(self._group, self._origin)
        self.share = 100 * router.shares_by_weight(base)[plan.group]
        """Share of the traffic now, per cent."""
        self._began_s = 0.0
        self._step()

    def tick(self) -> None:
        """Judge the group, and take the next step when it is time."""
        # Also where somebody sets weights between this look and the step: theirs are never overwritten.
        with suppress(WeightsChanged):
            if self.state == "moving" and self._router.weights.number == self._last:
                self._judge_and_move()
        self.give_way()

    def give_way(self) -> None:
        """End where somebody else has set weights."""
        weights = self._router.weights
        if self.state == "moving" and weights.number != self._last:
            self._end("stopped", f"the weights were changed by {weights.source}")

    def _judge_and_move(self) -> None:
        """Raise WeightsChanged when somebody else has set weights meanwhile."""
        elapsed_s = self._clock() - self._began_s
        figures = self._group.recent.figures(elapsed_s)
        judged = figures["requests"] >= self.plan.min_requests
        trouble = self._trouble(figures, judged)
        if trouble is not None:
            self._router.rollback(f"ramp of {self.plan.group}: {trouble.told}", source="ramp", if_number=self._last)
            self.broken_by = trouble.figure
            self._end("rolled_back", trouble.told)
        elif elapsed_s < self.plan.every_s:
            return
        elif self.plan.limits and self.plan.to > self.share > 0 and not judged:
            # Traffic that nobody has seen going well is no reason to send more of it.
            self.reason = (
                f"waiting at {self.share:g} % for the limits to be judged: {figures['requests']:.0f} of"
                f" {self.plan.min_requests} requests have ended"
            )
        else:
            self._step() if self._has_further else self._end("done", f"{self.share:g} % reached and held")

    def stop(self, reason: str) -> None:
        """Leave the weights where they are."""
        if self.state == "moving":
            self._end("stopped", reason)

    @property
    def _has_further(self) -> bool:
        return not math.isclose(self.share, self.plan.to, abs_tol=1e-9)

    def _trouble(self, figures: Mapping[str, float], judged: bool) -> Breach | None:
        # Read once: it may get well meanwhile.
        failure = self._group.failure
        if failure is not None and self.share > 0:
            return Breach(GROUP_DOWN, f"the group takes no requests: {failure}")
        return broken(self.plan.limits, figures) if judged else None

    def _step(self) -> None:
        left = self.plan.to - self.share
        share = self.plan.to if abs(left) <= self.plan.step else self.share + math.copysign(self.plan.step, left)
        shares = shares_with(self._origin, self.plan.group, share)
        reason = f"ramp of {self.plan.group} to {self.plan.to:g} %, now {share:g} %"
        changed = self._router.set_weights(shares, "ramp", reason, step_of=self._base, if_number=self._last)
        self._last, self.share = changed.number, share
        self.reason = ""
        self._began_s = self._clock()

    def _end(self, state: RampState, reason: str) -> None:
        self.state, self.reason = state, reason
        logger.warning("ramp of group %s: %s (%s)", self.plan.group, state.replace("_", " "), reason)


def _check_room(group: DeviceGroup, regular: Collection[str]) -> None:
    if group.standby:
        raise RequestError(
            f"group {group.name!r} is on standby and takes traffic only while no other group can; ramp another one",
            param="group",
            code="standby",
        )
    if len(regular) < 2:
        raise RequestError("there is no other device group that a ramp could take traffic from", code="one_group")


def shares_with(shares: Mapping[str, float], name: str, percent: float) -> dict[str, float]:
    """Return weights that sum to 100, `percent` of them for `name`, the others in their old ratio (equal if all 0)."""
    others = {other: share for other, share in shares.items() if other != name}
    total = sum(others.values())
    if not total:
        others, total = dict.fromkeys(others, 1.0), float(len(others))
    # Rounded: 100 - 33.4 is meant to be 66.6, and the cycle of the picks is as long as the figures are.
    rest = {other: round((100 - percent) * share / total, 9) for other, share in others.items()}
    return {**rest, name: round(percent, 9)}
