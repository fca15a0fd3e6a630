import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglk.bench.metrics import LATENCIES, count, duration, meets, percentile, summarise
from sglk.bench.record import RequestRecord, Status
from sglk.config.bench_schema import SloConfig

NO_LIMIT = SloConfig()


def request(
    index: int = 0,
    *,
    sent_s: float = 0.0,
    ttft_s: float | None = 0.5,
    e2e_s: float = 2.0,
    tokens: int | None = 4,
    prompt: int | None = 10,
    cached: int | None = 0,
    status: Status = "ok",
    itl_s: tuple[float, ...] = (),
) -> RequestRecord:
    return RequestRecord(
        index=index,
        phase="measured",
        status=status,
        sent_s=sent_s,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        prompt_tokens=prompt,
        completion_tokens=tokens,
        cached_tokens=cached,
        itl_s=list(itl_s),
    )


def failure(sent_s: float = 0.0, e2e_s: float = 0.001, status: Status = "failed") -> RequestRecord:
    return request(sent_s=sent_s, ttft_s=None, e2e_s=e2e_s, tokens=None, prompt=None, cached=None, status=status)


def test_figures_worked_out_by_hand() -> None:
    requests = [
        request(0, sent_s=1.0, ttft_s=0.5, e2e_s=2.0, tokens=4, prompt=10, cached=5, itl_s=(0.5, 0.5, 0.5)),
        request(1, sent_s=2.0, ttft_s=1.0, e2e_s=3.0, tokens=11, prompt=30, cached=5, itl_s=(0.1, 0.3)),
    ]
    summary = summarise(requests, NO_LIMIT)
    # From the first send at 1 s to the last token at 5 s.
    assert duration(requests) == 4.0
    assert summary["request_throughput"] == 2 / 4
    assert summary["output_throughput"] == 15 / 4
    assert summary["total_throughput"] == 55 / 4
    assert summary["cached_share"] == 10 / 40
    assert summary["ttft_s_mean"] == 0.75
    assert summary["ttft_s_p50"] == 0.75
    assert summary["ttft_s_p90"] == pytest.approx(0.95)
    assert summary["ttft_s_p99"] == pytest.approx(0.995)
    # (2.0 - 0.5)/3 and (3.0 - 1.0)/10.
    assert summary["tpot_s_mean"] == pytest.approx((0.5 + 0.2) / 2)
    assert summary["itl_s_n"] == 5
    assert summary["itl_s_p50"] == 0.5
    assert summary["e2e_s_mean"] == 2.5
    assert (summary["output_tokens"], summary["prompt_tokens"]) == (15, 40)


@pytest.mark.parametrize("tokens", [0, 1])
def test_an_answer_of_one_token_has_no_time_per_further_token(tokens: int) -> None:
    summary = summarise([request(tokens=tokens), request(tokens=4, ttft_s=0.5, e2e_s=2.0)], NO_LIMIT)
    assert summary["tpot_s_n"] == 1
    assert summary["tpot_s_mean"] == 0.5
    assert summary["ttft_s_n"] == 2


def test_only_one_token_answers_leave_tpot_absent() -> None:
    summary = summarise([request(tokens=1)], NO_LIMIT)
    assert summary["tpot_s_n"] == 0
    assert summary["tpot_s_mean"] is None
    assert summary["tpot_s_p99"] is None


def test_zero_successes_give_no_numbers() -> None:
    summary = summarise([failure(), failure(status="timeout")], NO_LIMIT)
    assert summary["success_rate"] == 0.0
    assert summary["goodput_share"] == 0.0
    others = {name: value for name, value in summary.items() if name not in {"success_rate", "goodput_share"}}
    assert all(value is None or (name.endswith("_n") and value == 0) for name, value in others.items())


def test_no_requests_at_all() -> None:
    assert summarise([], NO_LIMIT)["success_rate"] is None
    assert duration([]) == 0.0


def test_equal_timestamps_give_no_rate_and_no_nan() -> None:
    summary = summarise([request(ttft_s=0.0, e2e_s=0.0, tokens=5, itl_s=(0.0,))], NO_LIMIT)
    assert summary["output_throughput"] is None
    assert summary["tpot_s_mean"] == 0.0


def test_failures_leave_latencies_but_stay_in_goodput_and_duration() -> None:
    good = [request(sent_s=0.0, ttft_s=0.5, e2e_s=2.0), request(sent_s=0.0, ttft_s=0.7, e2e_s=2.0)]
    mixed = [*good, failure(sent_s=0.0), failure(sent_s=1.0, e2e_s=9.0, status="timeout")]
    summary = summarise(mixed, SloConfig(ttft_s=0.6))
    for name in LATENCIES:
        assert summary[f"{name}_mean"] == summarise(good, NO_LIMIT)[f"{name}_mean"]
    assert summary["success_rate"] == 0.5
    assert summary["goodput_share"] == 0.25
    assert summary["goodput"] == pytest.approx(1 / 10)
    assert summary["output_throughput"] == pytest.approx(8 / 10)


def test_counts_keep_warmup_apart() -> None:
    warmup = request()
    warmup.phase = "warmup"
    requests = [warmup, request(), failure(), failure(status="timeout")]
    counts = count(requests)
    assert (counts.requests, counts.completed, counts.failed, counts.timeout, counts.warmup) == (3, 1, 1, 1, 1)
    assert summarise(requests, NO_LIMIT) == summarise(requests[1:], NO_LIMIT)


def test_slo_rules_for_absent_figures() -> None:
    assert meets(request(tokens=1), SloConfig(tpot_s=0.001))
    assert not meets(request(ttft_s=None, tokens=0), SloConfig(ttft_s=1.0))
    assert meets(request(ttft_s=0.5, e2e_s=2.0, tokens=4), SloConfig(ttft_s=0.5, tpot_s=0.5, e2e_s=2.0))
    assert not meets(request(ttft_s=0.5, e2e_s=2.0, tokens=4), SloConfig(ttft_s=0.5, tpot_s=0.49))
    assert not meets(failure(), NO_LIMIT)


def test_unknown_token_counts_make_the_rate_unknown() -> None:
    summary = summarise([request(prompt=None), request()], NO_LIMIT)
    assert summary["output_throughput"] == 4.0
    assert summary["total_throughput"] is None
    assert summary["prompt_tokens"] is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([0, 50, 90, 99, 100]))
def test_percentile_is_the_usual_linear_one(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


@example([request(ttft_s=None, e2e_s=0.0), request(ttft_s=None, e2e_s=1.1125369292536007e-308)])
@given(
    st.lists(
        st.builds(
            request,
            ttft_s=st.none() | st.floats(0, 10),
            e2e_s=st.floats(0, 20),
            tokens=st.none() | st.integers(0, 5),
            prompt=st.none() | st.integers(0, 5),
            cached=st.none() | st.integers(0, 5),
            status=st.sampled_from(["ok", "failed", "timeout"]),
        ),
        max_size=6,
    )
)
def test_no_figure_is_ever_nan_or_infinite(requests: list[RequestRecord]) -> None:
    summary = summarise(requests, SloConfig(ttft_s=1.0))
    assert all(value is None or math.isfinite(value) for value in summary.values())
