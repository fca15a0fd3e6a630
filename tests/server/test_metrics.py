import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sglk.engine.messages import Output
from sglk.server.latency import LatencyMetrics
from tests.server.serving import ENDLESS, MODEL, Served, patient_runner, serving, wait_until

BODY = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}
OUTCOMES = ("completed", "refused", "aborted", "failed")


@pytest.fixture(scope="module")
def samples() -> dict[str, float]:
    """Metrics after 3 streamed, 3 plain, 2 refused and 2 aborted requests."""
    with serving(patient_runner()) as served:
        for _ in range(3):
            served.events("/v1/completions", BODY)
            served.post("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}})
        served.post("/v1/completions", {**BODY, "max_tokens": -1})
        served.post("/v1/completions", {**BODY, "model": "another"})
        for stream in (False, True):
            connection = served.call("/v1/completions", {**ENDLESS, "stream": stream})
            wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 1)
            connection.close()
            served.wait_idle()
        wait_until(lambda: served.samples()["sglk_requests_in_flight"] == 0)
        return served.samples()


def test_nobody_is_left_out(samples: dict[str, float]) -> None:
    counts = [samples[f"sglk_requests_{outcome}_total"] for outcome in OUTCOMES]

    assert counts == [6, 2, 2, 0]
    assert samples["sglk_requests_received_total"] == sum(counts)


@pytest.mark.parametrize("name", ["time_to_first_token", "queue_time", "prefill_latency"])
def test_first_tokens_are_timed_in_both_modes(samples: dict[str, float], name: str) -> None:
    # Those of the two clients that left may have come before they did.
    assert 6 <= samples[f"sglk_{name}_seconds_count"] <= 8
    assert samples[f"sglk_{name}_seconds_sum"] > 0


@pytest.mark.parametrize("name", ["e2e_request_latency", "time_per_output_token"])
def test_complete_answers_are_timed_in_both_modes(samples: dict[str, float], name: str) -> None:
    assert samples[f"sglk_{name}_seconds_count"] == 6
    assert samples[f"sglk_{name}_seconds_sum"] > 0


@pytest.mark.parametrize("name", ["time_to_first_token", "inter_token_latency", "e2e_request_latency"])
@pytest.mark.parametrize("figure", ["count", "sum"])
def test_dashboards_for_sglang_find_their_histograms(samples: dict[str, float], name: str, figure: str) -> None:
    assert samples[f"sglang:{name}_seconds_{figure}"] == samples[f"sglk_{name}_seconds_{figure}"]


def test_every_gap_is_observed(samples: dict[str, float]) -> None:
    assert samples["sglk_inter_token_latency_seconds_count"] >= 6 * 3


def test_gauges_return_to_zero(samples: dict[str, float]) -> None:
    for name in ("sglk_running_requests", "sglk_queued_requests", "sglk_kv_used_tokens", "sglk_requests_in_flight"):
        assert samples[name] == 0
    assert samples["sglang:num_running_reqs"] == samples["sglang:num_queue_reqs"] == 0


def test_tokens_are_counted(samples: dict[str, float]) -> None:
    assert samples["sglk_generated_tokens_total"] >= 24
    assert samples["sglk_cached_prompt_tokens_total"] == 5 * 4
    assert samples["sglang:cached_tokens_total"] == samples["sglk_cached_prompt_tokens_total"]
    assert 0 < samples["sglk_cache_hit_ratio"] < 1


def test_steps_and_their_time_are_counted(samples: dict[str, float]) -> None:
    assert samples["sglk_engine_steps_total"] > 0
    assert samples["sglk_engine_busy_seconds_total"] > 0


def test_a_refusal_for_a_missing_key_is_counted() -> None:
    with serving(server={"api_key": "key"}) as served:
        served.post("/v1/completions", BODY)
        counts = served.samples()

    assert counts["sglk_requests_received_total"] == counts["sglk_requests_refused_total"] == 1


def test_labels_come_from_the_configuration_alone(served: Served) -> None:
    for name in ("one", "two", "three"):
        served.post("/v1/completions", {"prompt": "x", "model": name})
    families = list(text_string_to_metric_families(served.get("/metrics").text))

    for family in families:
        for sample in family.samples:
            labels = set(sample.labels.items()) - {("le", sample.labels.get("le"))}
            known = {("model", MODEL), ("model_name", MODEL), ("group", "left"), ("replica", "left/0")}
            fixed = ("state", "outcome", "chip", "backend")
            assert {each for each in labels if each[0] not in fixed} <= known, sample.name


def test_the_first_token_s_time_splits_into_queue_and_prefill() -> None:
    registry = CollectorRegistry()
    clock = LatencyMetrics(registry, "tiny").start()
    clock.received_s -= 1.0
    clock.tick(
        Output("x", (1,), "a", prompt_tokens=1, completion_tokens=1, cached_tokens=0, queue_s=0.25, replica="default/0")
    )

    def total(name: str) -> float:
        value = registry.get_sample_value(
            f"sglk_{name}_seconds_sum", {"model": "tiny", "group": "default", "replica": "default/0"}
        )
        assert value is not None
        return value

    assert total("queue_time") == 0.25
    assert total("queue_time") + total("prefill_latency") == pytest.approx(total("time_to_first_token"))
    assert total("time_to_first_token") >= 1.0
