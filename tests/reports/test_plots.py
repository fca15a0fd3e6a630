"""The charts show the figures they claim to show."""

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk_reports.plots import axes, distributions, pareto_front
from sglk_reports.study import Goal

from tests.reports.folders import record

POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(POINTS)
def test_the_front_is_what_no_other_setting_beats(points: list[tuple[int, int]]) -> None:
    frame = pd.DataFrame(points, columns=["latency", "rate"])
    front = set(pareto_front(frame, "latency", "rate").index)
    for index, (latency, rate) in enumerate(points):
        beaten = any(a <= latency and b >= rate and (a, b) != (latency, rate) for a, b in points)
        assert (index in front) != beaten


def test_the_axes_are_the_goals_own_where_there_are_any() -> None:
    known = ["output_throughput", "goodput", "ttft_s_p99", "e2e_s_p99"]
    assert axes([Goal("goodput", "maximize")], known) == ("ttft_s_p99", "goodput")
    assert axes([Goal("e2e_s_p99", "minimize")], known) == ("e2e_s_p99", "output_throughput")
    assert axes([Goal("goodput", "maximize")], ["goodput"]) is None


def test_request_times_rise_to_the_whole_and_leave_out_failures() -> None:
    run = record("one", failed=3)
    figure = distributions({"rank 1": [run]})
    assert figure is not None
    first = figure.data[0]
    expected = sorted(request.ttft_s * 1000 for request in run.requests if request.ttft_s is not None)
    assert list(first.x)[1:] == expected
    assert len(expected) == 9
    assert (first.y[0], first.y[-1]) == (0, 100)


def test_without_raw_requests_there_is_no_chart_of_their_times() -> None:
    run = record("one")
    run.requests = []
    assert distributions({"rank 1": [run]}) is None
