"""What the router adds to a request: from `submit` to its last output, against calling the engine directly.

The engine is null: it answers each request with one output at once, in the caller's thread. Two groups of two replicas,
weights 80 to 20.
"""

import gc
import statistics
import time
from collections.abc import Callable

from benchmarks.result import Row, main
from sglk.cluster.breaker import Breaker, BreakerSettings
from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.router import Router
from sglk.engine.messages import EngineStats, Finish, GenerateRequest, Output

BAR_US = 50.0
PICKS = 200
WEIGHTS = {"a": 80.0, "b": 20.0}
PROMPT = tuple(range(1000))

OnOutput = Callable[[Output], None]


class NullEngine:
    """Answers every request with its end."""

    is_alive = True
    failure: str | None = None
    stuck_s = 0.0

    def submit(self, request: GenerateRequest, on_output: OnOutput) -> None:
        on_output(Output(request.request_id, (7,), "x", 1, 1, 0, Finish("length")))

    def abort(self, request_id: str) -> None:
        raise AssertionError("nothing is left to abort")

    def stats(self) -> EngineStats:
        return EngineStats()

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        pass


def router_of(policy: str) -> Router:
    """Return a router over two groups of two null engines."""
    groups = [
        DeviceGroup(name, [Replica(f"{name}/{n}", NullEngine(), Breaker(BreakerSettings())) for n in range(2)])
        for name in WEIGHTS
    ]
    return Router(groups, WEIGHTS, policy=policy)


def measure(quick: bool) -> list[Row]:
    """Time each policy, with and without a session, and count the picks of whole cycles."""
    count = 2_000 if quick else 50_000
    direct = cost_us(NullEngine().submit, count, None)
    rows = [Row("engine alone, per request", direct, "us")]
    for policy in ("least_loaded", "round_robin", "prefix_aware"):
        added = cost_us(router_of(policy).submit, count, None) - direct
        rows.append(Row(f"added by the router, {policy}", added, "us", "bar, at most", BAR_US))
    sticky = cost_us(router_of("least_loaded").submit, count, "a user") - direct
    rows.append(Row("added by the router, with a session", sticky, "us", "bar, at most", BAR_US))
    rows.append(Row(f"picks out of place in {PICKS}, over each cycle", picks_out_of_place(), "picks"))
    return rows


def cost_us(submit: Callable[[GenerateRequest, OnOutput], None], count: int, session: str | None) -> float:
    """Return the median of seven runs of `count` requests, per request."""
    requests = [GenerateRequest(str(number), PROMPT, session=session) for number in range(count)]
    times = []
    for _ in range(7):
        gc.collect()
        start = time.thread_time()
        for request in requests:
            submit(request, _ignore)
        times.append((time.thread_time() - start) / count)
    return statistics.median(times) * 1e6


def picks_out_of_place() -> float:
    """Return by how many picks the groups miss their weights at the worst over any cycle."""
    router = router_of("least_loaded")
    picked: list[str] = []
    before = dict.fromkeys(WEIGHTS, 0)
    for number in range(PICKS):
        router.submit(GenerateRequest(str(number), PROMPT), _ignore)
        now = {name: sum(each.counters.picks for each in group.replicas) for name, group in router.groups.items()}
        picked.append(next(name for name in now if now[name] > before[name]))
        before = now
    cycle = 5  # 80 to 20 is 4 to 1
    windows = [picked[start : start + cycle] for start in range(PICKS - cycle + 1)]
    return max(abs(window.count("b") - 1) for window in windows)


def _ignore(output: Output) -> None:
    pass


if __name__ == "__main__":
    raise SystemExit(main("router_cost", measure))
