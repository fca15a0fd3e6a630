"""The breaker opens on the server's own failures alone, and closes through probes."""

from sglk.cluster.breaker import Breaker, BreakerSettings
from tests.cluster.fleet import Clock


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(BreakerSettings(failures=3, cool_down_s=5, longest_s=30), clock)
    for _ in range(3):
        breaker.fail("boom", breaker.enter())
    assert breaker.state == "open"
    return breaker


def test_failures_in_a_row_open_it_and_a_good_answer_between_starts_the_count_again() -> None:
    breaker = Breaker(BreakerSettings(failures=3))
    for _ in range(5):
        breaker.fail("boom", False)
        breaker.fail("boom", False)
        breaker.succeed(False)
    assert breaker.state == "closed"
    assert breaker.last_error == "boom"


def test_what_the_client_is_to_blame_for_neither_opens_nor_forgives() -> None:
    breaker = Breaker(BreakerSettings(failures=3))
    for _ in range(10):
        breaker.leave(breaker.enter())
    assert breaker.state == "closed"
    breaker.fail("boom", False)
    breaker.fail("boom", False)
    breaker.leave(False)
    breaker.fail("boom", False)
    assert breaker.state == "open"


def test_after_the_cool_down_one_probe_at_a_time_passes() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.admits
    clock.now_s += 5
    assert breaker.state == "half_open"
    assert breaker.enter()
    assert not breaker.admits
    breaker.succeed(True)
    assert breaker.state == "closed"
    assert breaker.admits


def test_a_probe_that_the_client_spoils_leaves_the_question_open() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 5
    breaker.leave(breaker.enter())
    assert breaker.state == "half_open"
    assert breaker.admits


def test_failed_probes_wait_longer_up_to_a_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(5):
        before = clock.now_s
        while not breaker.admits:
            clock.now_s += 1
        waits.append(clock.now_s - before)
        breaker.fail("boom", breaker.enter())
    assert waits == [5, 10, 20, 30, 30]


def test_late_ends_of_requests_from_before_it_opened_change_nothing() -> None:
    clock = Clock()
    breaker = opened(clock)
    breaker.fail("late", False)
    breaker.succeed(False)
    assert breaker.state == "open"
    clock.now_s += 5
    assert breaker.state == "half_open"
    breaker.succeed(False)
    assert breaker.state == "half_open"


def doubted(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.doubt("boom", breaker.enter())


def test_what_the_request_may_be_to_blame_for_opens_it_only_when_nothing_else_comes() -> None:
    clock = Clock()
    breaker = Breaker(BreakerSettings(failures=3, doubts=20), clock)
    doubted(breaker, 19)
    breaker.succeed(False)
    doubted(breaker, 19)
    assert breaker.state == "closed"
    doubted(breaker, 1)
    assert breaker.state == "open"
    clock.now_s += 5
    doubted(breaker, 1)
    assert breaker.state == "open"
    clock.now_s += 5
    assert breaker.state == "open"  # it waits longer
    clock.now_s += 5
    breaker.succeed(breaker.enter())
    assert (breaker.state, breaker.failed_probes) == ("closed", 0)


def test_what_the_request_may_be_to_blame_for_forgives_no_failure() -> None:
    breaker = Breaker(BreakerSettings(failures=3, doubts=20))
    for _ in range(3):
        breaker.fail("boom", False)
        doubted(breaker, 2)
    assert breaker.state == "open"


def test_a_probe_that_may_have_been_wrong_itself_leaves_the_question_open() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 5
    breaker.doubt("late", False)
    doubted(breaker, 1)
    assert (breaker.state, breaker.admits) == ("half_open", True)


def test_a_breaker_that_shall_bear_more_failures_bears_more_doubts() -> None:
    breaker = Breaker(BreakerSettings(failures=30))
    doubted(breaker, 29)
    assert breaker.state == "closed"
    doubted(breaker, 1)
    assert breaker.state == "open"
