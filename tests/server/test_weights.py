"""Weights of device groups, as they are given to a running server."""

import pytest

from tests.server.serving import Served, error_of


def test_requests_follow_the_weights_and_a_change_of_them(pair: Served) -> None:
    assert sorted(pair.ask() for _ in range(10)) == ["a"] * 8 + ["b"] * 2
    pair.admin("PATCH", "groups/weights", {"a": 0, "b": 100})
    assert {pair.ask() for _ in range(5)} == {"b"}
    text = pair.get("/metrics").text
    assert 'sglk_group_weight{group="b",model="tiny"} 100.0' in text
    assert 'sglk_group_share_ratio{group="a",model="tiny"} 0.0' in text
    overview = pair.admin("POST", "groups/rollback")
    assert overview["weights"]["shares"] == {"a": 80, "b": 20}
    assert [entry["source"] for entry in overview["history"]] == ["start", "admin", "rollback"]


@pytest.mark.parametrize(
    "body", [{}, {"a": 0, "b": 0}, {"a": -1}, {"c": 1}, {"weights": {"a": "x"}}, {"a": None}, {"weights": {}}]
)
def test_bad_weights_are_refused_and_change_nothing(pair: Served, body: dict[str, object]) -> None:
    error = error_of(pair.client.patch("/admin/groups/weights", json=body), 400)
    assert error["message"]
    assert pair.admin("GET", "groups")["weights"]["shares"] == {"a": 80, "b": 20}


def test_weights_may_be_moved_on_condition_that_nobody_moved_them_before(pair: Served) -> None:
    seen = pair.admin("GET", "groups")["weights"]["number"]
    pair.admin("PATCH", "groups/weights", {"a": 1})
    late = {"weights": {"a": 5}, "if_number": seen}
    assert error_of(pair.client.patch("/admin/groups/weights", json=late), 409)["code"] == "weights_changed"
    assert pair.admin("GET", "groups")["weights"]["shares"] == {"a": 1, "b": 20}
    pair.admin("PATCH", "groups/weights", {**late, "if_number": seen + 1})
    for number in ("1", 1.5, True):
        error_of(pair.client.patch("/admin/groups/weights", json={**late, "if_number": number}), 400)


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 201, ["a"], "\x1b[2J"])
def test_a_reason_is_one_short_line(pair: Served, reason: object) -> None:
    body = {"weights": {"a": 5}, "reason": reason}
    assert error_of(pair.client.patch("/admin/groups/weights", json=body))["param"] == "reason"
    assert pair.admin("GET", "groups")["weights"]["number"] == 0


@pytest.mark.parametrize("share", [10**400, 1e300, 1e-300, "x" * 10**6, [[1] * 10**5]])
def test_weights_that_no_sum_survives_are_refused_in_few_words(pair: Served, share: object) -> None:
    for body in ({"a": share}, {"weights": {"a": share}}):
        error = error_of(pair.client.patch("/admin/groups/weights", json=body), 400)
        assert len(error["message"]) < 300
    error = error_of(pair.client.patch("/admin/groups/weights", json={"x" * 10**5: 1}), 400)
    assert len(error["message"]) < 300
