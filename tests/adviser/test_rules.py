"""Each rule speaks on the figures that it is about, and no other one does."""

from typing import Any

import pytest

from sglk.adviser.history import History
from sglk.adviser.rules import Advice, load_rules, parse_condition
from sglk.adviser.snapshot import figures, read_snapshot
from sglk.errors import ConfigError
from tests.adviser.recorded import recorded, snapshot

FACTS = {"a": {"url": "http://host:8000", "chip": "cpu", "model": "smollm2"}}

SITUATIONS: dict[str, dict[str, Any]] = {
    "scheduler-waits": {"queued_requests": 12, "running_requests": 8},
    "window-full": {"queued_requests": 12, "running_requests": 32},
    "kv-full": {"kv_used_tokens": 9500, "retractions_total": 7},
    "short-prefixes-crowd-the-cache": {"cached_prompt_tokens_total": 100, "evicted_tokens_total": 600},
    "cache-too-small": {"cached_prompt_tokens_total": 100, "evicted_tokens_total": 600, "radix_min_len": 128},
    "ttft-is-queueing": {"time_to_first_token_seconds_sum": 300, "queue_time_seconds_sum": 250},
    "ttft-is-prefill": {"time_to_first_token_seconds_sum": 300, "prefill_latency_seconds_sum": 250},
    "fallback-ops": {"op_fallbacks": 3},
    "group-fails": {"failed": 5},
}


def advice(*snapshots: Any) -> list[Advice]:
    return History(snapshots).advice(FACTS)


def test_nothing_stands_out_on_a_calm_server() -> None:
    assert advice(snapshot()) == []
    assert advice() == []


@pytest.mark.parametrize(("rule", "situation"), SITUATIONS.items(), ids=SITUATIONS)
def test_a_situation_is_named_with_evidence_and_a_command(rule: str, situation: dict[str, Any]) -> None:
    (found,) = advice(snapshot(**situation))
    assert (found.rule, found.group) == (rule, "a")
    assert found.cause
    assert "?" not in found.evidence
    assert "{" not in found.evidence
    assert found.command


def slowed(chips: tuple[str, ...], **late: Any) -> list[Advice]:
    """A server that made 100 tokens/s for two minutes and then 40."""
    early = [snapshot(at_s=30.0 * step, chips=chips, generated_tokens_total=3000 * step) for step in range(5)]
    later = [
        snapshot(at_s=120 + 30.0 * step, chips=chips, generated_tokens_total=12000 + 1200 * step, **late)
        for step in range(1, 3)
    ]
    return advice(*early, *later)


def test_halved_throughput_is_contention_where_chips_are_mixed_and_the_device_where_not() -> None:
    (mixed,) = slowed(("cuda", "kunlun"))
    assert mixed.rule == "throughput-halved-on-a-mixed-machine"
    assert "40 tokens/s now, 100 before" in mixed.evidence
    assert [each.rule for each in slowed(("cuda",))] == ["throughput-halved"]


def test_less_traffic_is_no_slower_device() -> None:
    assert slowed(("cuda",), running_requests=1) == []


def test_every_rule_has_its_situation() -> None:
    tested = {*SITUATIONS, "throughput-halved-on-a-mixed-machine", "throughput-halved"}
    assert {rule.name for rule in load_rules()} == tested


def test_only_the_latest_stretch_counts() -> None:
    before = snapshot(at_s=0, retractions_total=50)
    assert advice(before, snapshot(at_s=60, retractions_total=50, kv_used_tokens=9500)) == []
    assert [each.rule for each in advice(before, snapshot(at_s=60, retractions_total=51, kv_used_tokens=9500))] == [
        "kv-full"
    ]


def test_rules_speak_of_figures_that_exist() -> None:
    before, now = (
        snapshot(at_s=0),
        snapshot(
            at_s=60,
            **dict.fromkeys(("prompt_tokens_total",), 5000),
            failed=1,
            router_picks_total=200,
            sequences_finished_total=200,
            time_to_first_token_seconds_count=200,
            queue_time_seconds_count=200,
            prefill_latency_seconds_count=200,
        ),
    )
    known = set(figures(before, now, "a"))
    for rule in load_rules():
        for condition in rule.when:
            for name in (condition.figure, condition.other):
                assert name is None or name.removeprefix("before.") in known, (rule.name, name)


def test_a_replica_that_was_started_again_counts_from_0() -> None:
    found = figures(snapshot(at_s=0, generated_tokens_total=900), snapshot(at_s=10, generated_tokens_total=50), "a")
    assert found["tokens_per_second"] == 0


@pytest.mark.parametrize("text", ["", "hello", "a{ 3", "sglk_scrape_time_seconds 3\n", "up 1\n"])
def test_what_are_no_metrics_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no metrics"):
        read_snapshot(text)


@pytest.mark.parametrize("text", ["", "a", "a < ", "a =< 3", "a < 3 * 4 * b", "a < b * 3"])
def test_conditions_have_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        parse_condition(text)


def test_recorded_metrics_are_read() -> None:
    assert read_snapshot(recorded(at_s=7)).at_s == 7
