"""Each rule speaks on the figures that it is about, and no other one does."""

from typing import Any

import pytest

from sglk.adviser.history import History
from sglk.adviser.rules import Advice, load_rules, parse_condition
from sglk.adviser.snapshot import Snapshot, figures, of_one_process, read_snapshot
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
    "only-group-fails": {"failed": 5},
    "group-fails": {"failed": 5, "others": 'sglk_running_requests{group="b",replica="b/0"} 1\n'},
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


def slowed(chips: tuple[str, ...], tpot_s: float = 0.1, backend: str = "cuda", **late: Any) -> list[Advice]:
    """A server that made 100 tokens/s for two minutes, one each 40 ms, and then 40, one each `tpot_s`."""

    def at(step: int, tokens: int, tpot_sum_s: float, **more: Any) -> Snapshot:
        answers = {
            f"time_per_output_token_seconds_{name}": value
            for name, value in (("sum", tpot_sum_s), ("count", 10 * step))
        }
        return snapshot(
            at_s=30.0 * step, chips=chips, backend=backend, generated_tokens_total=tokens, **answers, **more
        )

    early = [at(step, 3000 * step, 0.4 * step) for step in range(5)]
    later = [at(4 + step, 12000 + 1200 * step, 1.6 + 10 * tpot_s * step, **late) for step in range(1, 3)]
    return advice(*early, *later)


def test_halved_throughput_is_contention_where_chips_are_mixed_and_the_device_where_not() -> None:
    (mixed,) = slowed(("cuda", "kunlun"))
    assert mixed.rule == "throughput-halved-on-a-mixed-machine"
    assert "40 tokens/s now, 100 before; 0.100 s a token, 0.040 s before; 4.0 requests running" in mixed.evidence
    assert [each.rule for each in slowed(("cuda",))] == ["throughput-halved"]


def test_less_traffic_is_no_slower_device() -> None:
    assert slowed(("cuda",), running_requests=1) == []
    # As many at the moment of the scrapes, which tells little of the time between.
    assert slowed(("cuda", "kunlun"), tpot_s=0.04) == []


def test_a_server_without_work_is_not_slow() -> None:
    idle = {"running_requests": 0, "time_per_output_token_seconds_sum": 0, "time_per_output_token_seconds_count": 0}
    early = [snapshot(at_s=30.0 * step, chips=("cpu", "kunlun"), generated_tokens_total=4 * step) for step in range(4)]
    late = [
        snapshot(at_s=30.0 * step, chips=("cpu", "kunlun"), generated_tokens_total=12, **idle) for step in (5, 6, 7)
    ]
    assert advice(*early, *late) == []


def test_simulated_cards_are_in_nobody_s_way_and_never_hot() -> None:
    assert slowed(("cuda", "kunlun"), backend="sim", simulated=1) == []


def test_a_restart_is_no_slower_device() -> None:
    assert slowed(("cuda",), replica_restarts_total=1) == []


def test_a_group_of_several_replicas_has_the_figures_of_one() -> None:
    other = recorded(radix_min_len=40, op_fallbacks=3).replace("a/0", "a/1")
    several = snapshot(radix_min_len=40, op_fallbacks=3, others=other)
    found = figures([several], "a")
    assert (found["radix_min_len"], found["fallback_ops"], found["running_requests"]) == (40, 3, 8)


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
            time_per_output_token_seconds_count=200,
        ),
    )
    known = set(figures([before, now], "a"))
    for rule in load_rules():
        for condition in rule.when:
            for name in (condition.figure, condition.other):
                assert name is None or name.removeprefix("before.") in known, (rule.name, name)


def test_a_replica_that_was_started_again_counts_from_0_and_the_others_on() -> None:
    def both(at_s: float, first: int, second: int) -> Snapshot:
        other = recorded(at_s, generated_tokens_total=second).replace("a/0", "a/1")
        return snapshot(at_s, generated_tokens_total=first, others=other)

    assert figures([both(0, 900, 5000), both(10, 50, 5200)], "a")["tokens_per_second"] == 25


def test_snapshots_of_other_processes_are_not_compared() -> None:
    late, early, other = snapshot(at_s=9), snapshot(at_s=3), snapshot(at_s=6, process=2)
    assert of_one_process([late, other, early]) == [early, late]
    assert of_one_process([]) == []


@pytest.mark.parametrize(
    "text", ["", "hello\n", "a{ 3\n", "sglk_scrape_time_seconds 3\n", "up 1\n", recorded(at_s=float("nan"))]
)
def test_what_are_no_metrics_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no metrics"):
        read_snapshot(text)


def test_a_file_that_was_cut_off_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match="in the middle of a line"):
        read_snapshot(recorded()[:-3])


@pytest.mark.parametrize("text", ["", "a", "a < ", "a =< 3", "a < 3 * 4 * b", "a < b * 3"])
def test_conditions_have_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        parse_condition(text)


def test_recorded_metrics_are_read() -> None:
    assert read_snapshot(recorded(at_s=7)).at_s == 7
