"""A ramp of a running server."""

import pytest

from tests.server.serving import Served, answering, error_of, serving, wait_until


def test_a_ramp_is_followed_shown_and_stopped(pair: Served) -> None:
    plan = {"group": "b", "to": 60, "step": 20, "every_s": 3600, "slo": "ttft_p99<2s"}
    assert pair.admin("POST", "ramp", plan)["share"] == 40
    assert error_of(pair.post("/admin/ramp", plan), 409)["code"] == "ramp_in_progress"
    assert pair.admin("GET", "ramp")["state"] == "moving"
    assert pair.admin("DELETE", "ramp")["state"] == "stopped"
    assert pair.admin("GET", "groups")["weights"]["percent"] == {"a": 60, "b": 40}
    assert pair.admin("POST", "groups/rollback")["weights"]["percent"] == {"a": 80, "b": 20}
    error_of(pair.post("/admin/ramp", {**plan, "slo": "ttft<2s"}), 400)
    error_of(pair.post("/admin/ramp", {**plan, "step": "much"}), 400)


def test_a_ramp_ends_with_the_rollback_that_takes_its_weights_away(pair: Served) -> None:
    plan = {"group": "b", "to": 60, "step": 20, "every_s": 3600}
    for _ in range(2):
        pair.admin("POST", "ramp", plan)
        ramp = pair.admin("POST", "groups/rollback")["ramp"]
        assert (ramp["state"], ramp["reason"]) == ("stopped", "the weights were changed by rollback")
    assert pair.admin("GET", "groups")["weights"]["percent"] == {"a": 80, "b": 20}


def test_a_ramp_that_breaks_its_limits_goes_back_with_the_reason_in_log_and_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runners = {"a": answering("a"), "b": answering("bbbb", spoils=lambda row: "sick" if row.num_generated else None)}
    with serving(runners, weights={"a": 90, "b": 10}, router={"breaker_failures": 99}) as served:
        plan = {"group": "b", "to": 80, "step": 40, "every_s": 3600, "slo": "error_rate<1%", "min_requests": 2}
        served.admin("POST", "ramp", plan)
        for _ in range(8):
            served.post("/v1/completions", {"prompt": "x", "temperature": 0})
        wait_until(lambda: served.admin("GET", "ramp")["state"] == "rolled_back")
        assert served.admin("GET", "groups")["weights"]["percent"] == {"a": 90, "b": 10}
        told = 'sglk_ramp_rolled_back{group="b",model="tiny",reason="error_rate"} 1.0'
        assert told in served.get("/metrics").text
    assert "ramp of group b: rolled back (error_rate is 100.00%, the limit is error_rate<1%)" in caplog.text
