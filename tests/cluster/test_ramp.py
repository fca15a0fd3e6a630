"""A ramp moves traffic step by step and goes back by itself when the limits break."""

import pytest

from sglk.cluster.group import DeviceGroup
from sglk.cluster.ramp import Ramp, RampPlan, shares_with
from sglk.cluster.recent import End, Recent, percentile
from sglk.cluster.router import Router
from sglk.cluster.slo import Breach, broken, parse_slo
from sglk.cluster.weights import HISTORY_LENGTH
from sglk.errors import RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.cluster.fleet import Clock, fleet

LIMITS = parse_slo("ttft_p99<2s,error_rate<1%")


def plan(**changes: object) -> RampPlan:
    given: dict[str, object] = {"group": "b", "to": 50, "step": 20, "every_s": 10.0, "limits": LIMITS, **changes}
    return RampPlan(**given)  # type: ignore[arg-type]


def serve(router: Router, clock: Clock, count: int = 30, ttft_s: float = 0.5, failed: int = 0) -> None:
    recent = router.groups["b"].recent
    for index in range(count):
        recent.add(End(clock.now_s, index < failed, ttft_s, 0.01, 1.0))


def share(router: Router) -> float:
    return router.weights.shares["b"]


def test_a_ramp_reaches_its_end_and_holds_it_before_it_is_done() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 8, "b": 0}, clock=clock) as router:
        ramp = Ramp(router, plan(), clock)
        seen = [share(router)]
        while ramp.state == "moving":
            clock.now_s += 5
            serve(router, clock)
            ramp.tick()
            seen.append(share(router))
        assert seen == [20, 20, 40, 40, 50, 50, 50]
        assert (ramp.state, ramp.reason) == ("done", "50 % reached and held")
        assert router.rollback().shares == {"a": 8, "b": 0}


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ({"ttft_s": 2.5}, "ttft_p99 is 2.5 s, the limit is ttft_p99<2s"),
        ({"failed": 1}, "error_rate is 3.33%, the limit is error_rate<1%"),
    ],
)
def test_broken_limits_return_to_the_weights_before_the_ramp(trouble: dict[str, float], told: str) -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 95, "b": 5}, clock=clock) as router:
        ramp = Ramp(router, plan(), clock)
        clock.now_s += 10
        serve(router, clock)
        ramp.tick()
        assert share(router) == 45
        clock.now_s += 1
        serve(router, clock, **trouble)  # type: ignore[arg-type]
        ramp.tick()
        assert router.weights.shares == {"a": 95, "b": 5}
        assert (ramp.state, ramp.reason) == ("rolled_back", told)
        assert told in router.weights.reason


def test_few_requests_are_no_verdict_and_old_ones_do_not_count() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}, clock=clock) as router:
        serve(router, clock, ttft_s=99)
        clock.now_s += 60
        ramp = Ramp(router, plan(), clock)
        clock.now_s += 1
        serve(router, clock, count=3, ttft_s=99)
        ramp.tick()
        assert ramp.state == "moving"


def test_no_step_follows_one_that_nobody_has_seen_going_well() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}, clock=clock) as router:
        ramp = Ramp(router, plan(), clock)
        for _ in range(3):
            clock.now_s += 20
            serve(router, clock, count=5)
            ramp.tick()
        assert (ramp.state, share(router)) == ("moving", 20)
        assert ramp.reason == "waiting at 20 % for the limits to be judged: 15 of 20 requests have ended"
        serve(router, clock, count=5)
        ramp.tick()
        assert (share(router), ramp.reason) == (40, "")
        free = Ramp(router, plan(limits=()), clock)
        clock.now_s += 10
        free.tick()
        assert share(router) == 50


def test_a_group_that_gets_well_while_it_is_judged_was_down_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}) as router:
        ramp = Ramp(router, plan())
        looks = iter(["device lost"])
        monkeypatch.setattr(DeviceGroup, "failure", property(lambda _: next(looks, None)))
        ramp.tick()
        assert ramp.reason == "the group takes no requests: device lost"


def test_a_group_that_is_down_ends_the_ramp() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}, clock=clock) as router:
        ramp = Ramp(router, plan(), clock)
        router.give_up(router.groups["b"].replicas[0], "device lost")
        ramp.tick()
        assert ramp.state == "rolled_back"
        assert "device lost" in ramp.reason
        assert share(router) == 0


def test_weights_that_somebody_else_sets_stop_the_ramp() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}, clock=clock) as router:
        ramp = Ramp(router, plan(), clock)
        router.set_weights({"a": 1, "b": 1}, "admin")
        clock.now_s += 100
        ramp.tick()
        assert (ramp.state, ramp.reason) == ("stopped", "the weights were changed by admin")
        assert router.weights.shares == {"a": 1, "b": 1}


class Meddling(Recent):
    """Figures at whose reading somebody else sets weights: after the ramp has looked at them, before its step."""

    def __init__(self, clock: Clock, router: Router) -> None:
        super().__init__(clock)
        self._router = router

    def figures(self, window_s: float) -> dict[str, float]:
        self._router.set_weights({"a": 3, "b": 1}, "admin")
        return super().figures(window_s)


@pytest.mark.parametrize("ttft_s", [0.5, 99.0], ids=["that takes a step", "that rolls back"])
def test_a_ramp_never_overwrites_weights_that_are_set_while_it_decides(ttft_s: float) -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}, clock=clock) as router:
        ramp = Ramp(router, plan(), clock)
        router.groups["b"].recent = Meddling(clock, router)
        clock.now_s += 10
        serve(router, clock, ttft_s=ttft_s)
        ramp.tick()
        assert router.weights.shares == {"a": 3, "b": 1}
        assert (ramp.state, ramp.reason, ramp.share) == ("stopped", "the weights were changed by admin", 20)
        assert [weights.source for weights in router.history.entries()] == ["start", "ramp", "admin"]


def test_the_way_back_from_a_ramp_outlasts_the_history() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 97, "b": 3}, clock=clock) as router:
        ramp = Ramp(router, plan(step=0.1, every_s=1.0), clock)
        for _ in range(2 * HISTORY_LENGTH):
            clock.now_s += 1
            serve(router, clock, count=20)
            ramp.tick()
        clock.now_s += 1
        serve(router, clock, ttft_s=99)
        ramp.tick()
        assert ramp.state == "rolled_back"
        assert router.weights.shares == {"a": 97, "b": 3}
        assert len(router.history.entries()) == HISTORY_LENGTH


def test_a_ramp_goes_down_as_well() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 50, "b": 50}, clock=clock) as router:
        ramp = Ramp(router, plan(to=0, step=30), clock)
        assert share(router) == 20
        clock.now_s += 10
        ramp.tick()
        assert router.weights.shares == {"a": 100, "b": 0}


def test_the_others_keep_their_ratio() -> None:
    assert shares_with({"a": 3, "b": 1, "c": 4}, "c", 20) == {"a": 60, "b": 20, "c": 20}
    assert shares_with({"a": 0, "b": 0, "c": 4}, "c", 20) == {"a": 40, "b": 40, "c": 20}


def test_groups_on_standby_have_no_part_in_what_a_ramp_shares_out() -> None:
    clock, runners = Clock(), {name: ScriptedRunner() for name in ("a", "b", "spare")}
    with fleet(runners, {"a": 1, "b": 0, "spare": 1}, standby=("spare",), clock=clock) as router:
        ramp = Ramp(router, plan(to=50, step=50), clock)
        assert router.weights.shares == {"a": 50, "b": 50, "spare": 1}
        assert router.shares_by_weight(router.weights) == {"a": 0.5, "b": 0.5, "spare": 0}
        assert ramp.share == 50
        ramp.stop("enough")
        with pytest.raises(RequestError, match="'spare' is on standby"):
            Ramp(router, plan(group="spare"), clock)
        for name in ("a", "b"):
            router.set_weights({name: 0}, "admin")
        assert router.shares_by_weight(router.weights) == {"a": 0, "b": 0, "spare": 1}


def test_a_ramp_needs_another_group_than_those_on_standby() -> None:
    runners = {"b": ScriptedRunner(), "spare": ScriptedRunner()}
    with fleet(runners, standby=("spare",)) as router, pytest.raises(RequestError, match="no other device group"):
        Ramp(router, plan(), Clock())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"group": "bb"}, "no device group is named 'bb'; did you mean 'b'"),
        ({"to": 101}, "`to` is 101"),
        ({"step": 0}, "`step` is 0"),
        ({"every_s": -1.0}, "`every_s` is -1"),
        ({"every_s": float("nan")}, "`every_s` is nan"),
    ],
)
def test_plans_that_cannot_be_followed_change_nothing(changes: dict[str, object], told: str) -> None:
    with (
        fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 0}) as router,
        pytest.raises(RequestError, match=told),
    ):
        Ramp(router, plan(**changes))
    assert router.weights.number == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ttft_p99", "is not a limit"),
        ("", "is not a limit"),
        ("ttft_p98<2s", "unknown figure 'ttft_p98'"),
        ("ttft_p99<2", "'2' in 'ttft_p99<2' is not a limit above 0 in ms or s"),
        ("ttft_p99<2%", "is not a limit above 0"),
        ("error_rate<0%", "is not a limit above 0"),
        ("e2e_p50<1.2.3s", "is not a limit above 0"),
    ],
)
def test_bad_limits_are_refused(text: str, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        parse_slo(text)


def test_limits_are_read_in_their_units_and_only_values_above_them_break() -> None:
    limits = parse_slo(" ttft_p99 < 1500ms , error_rate<=0.02 ")
    assert [(limit.figure, limit.most) for limit in limits] == [("ttft_p99", 1.5), ("error_rate", 0.02)]
    assert broken(limits, {"ttft_p99": 1.5, "error_rate": 0.02}) is None
    breach = broken(limits, {"error_rate": 0.021})
    assert breach == Breach("error_rate", "error_rate is 2.10%, the limit is error_rate<=0.02")


def test_recent_figures_are_those_of_the_window() -> None:
    clock = Clock()
    recent = Recent(clock)
    assert recent.figures(10) == {"requests": 0}
    recent.add(End(0.0, failed=True))
    clock.now_s = 20
    for value in range(1, 102):
        recent.add(End(20.0, False, value / 100, None, 2.0))
    figures = recent.figures(10)
    assert figures["requests"] == 101
    assert figures["error_rate"] == 0
    assert figures["ttft_p50"] == pytest.approx(0.51)
    assert "tpot_p50" not in figures
    assert percentile([1.0], 99) == 1
