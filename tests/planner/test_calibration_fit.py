"""Prices come out of measured steps as they went in, and their error is told honestly."""

from dataclasses import replace

import pytest

from sglk.errors import RunError
from sglk.planner.calibration.fit import fit, predict
from sglk.planner.calibration.serving import DecodeRun, Refusal, serving_time
from sglk.planner.cost.calibrated import CalibratedPrices, HostTime
from sglk.planner.cost.features import stretches
from sglk.planner.cost.shape import StepShape
from tests.planner import machines

UNSEEN = (
    StepShape(((200, 200),), logits=1),
    StepShape(((300, 900),), logits=1),
    StepShape(((40, 40), (90, 90), (70, 70)), logits=3),
    StepShape(decodes=(700,) * 5, logits=5),
    StepShape(decodes=tuple(range(100, 1300, 100)), logits=12),
    StepShape(((150, 400),), (333,) * 7, logits=8),
)


def test_steps_of_a_machine_with_known_prices_are_predicted_within_a_few_per_cent() -> None:
    found = fit(machines.measured(noise=0.03), machines.features())
    prices = CalibratedPrices(found.features(machines.features()), found.prices, HostTime())
    for shape in UNSEEN:
        assert prices.step_s(shape) == pytest.approx(machines.seconds(shape), rel=0.04)
        assert sum(prices.parts(shape).values()) == pytest.approx(prices.step_s(shape))
    parts, known = prices.parts(UNSEEN[3]), machines.features().of_decodes(UNSEEN[3])
    attention_s = sum(value * machines.PRICES.get(name, 0.0) for name, value in known.items())
    assert parts["attention_decode"] == pytest.approx(attention_s, rel=0.15)
    assert all(price > 0 for price in found.prices.values())


def test_the_error_of_left_out_steps_grows_with_the_noise() -> None:
    errors = [fit(machines.measured(noise), machines.features()).error.median for noise in (0.0, 0.02, 0.1)]
    assert errors == sorted(errors)
    assert errors[0] < 0.005
    # Uniform noise of 10 % is 5 % off in the median.
    assert 0.03 < errors[2] < 0.08


def test_a_line_that_bends_is_taken_only_where_steps_bend() -> None:
    bent, straight = machines.measured(0.01), machines.measured(0.01)
    features = machines.features((1,))
    flat = {"tokens_1": 1 / 100e9} | {name: price for name, price in machines.PRICES.items() if "tokens" not in name}
    straight = [
        replace(
            point, seconds=sum(value * flat.get(name, 0.0) for name, value in features.quantities(point.shape).items())
        )
        for point in straight
    ]
    assert fit(bent, features).form in ("coarse", "fine")
    assert fit(straight, features).error.worst < 0.02


def test_stairs_of_few_rows_are_learned_where_kernels_make_them() -> None:
    def stair_s(shape: StepShape) -> float:
        return machines.seconds(shape) + 0.008 * -(-min(shape.tokens, 16) // 4)

    found = fit([replace(each, seconds=stair_s(each.shape)) for each in machines.measured(0.01)], machines.features())
    assert found.form == "every"
    prices = CalibratedPrices(found.features(machines.features()), found.prices, HostTime())
    for rows in (4, 5, 9, 13):
        shape = StepShape(decodes=(300,) * rows, logits=rows)
        assert prices.step_s(shape) == pytest.approx(stair_s(shape), rel=0.03)


def test_what_rows_share_is_read_once_where_that_shows() -> None:
    truth = machines.PRICES | {"decode_bytes": 1 / 40e9, "decode_distinct": 1 / 8e9}

    def seconds(shape: StepShape) -> float:
        return sum(value * truth.get(name, 0.0) for name, value in machines.features().quantities(shape).items())

    found = fit([replace(each, seconds=seconds(each.shape)) for each in machines.measured(0.0)], machines.features())
    prices = CalibratedPrices(found.features(machines.features()), found.prices, HostTime())
    apart, together = (StepShape((), (700,) * 8, 8, shared=shared) for shared in (0, 7 * 640))
    assert prices.step_s(apart) == pytest.approx(seconds(apart), rel=0.02)
    assert prices.step_s(together) == pytest.approx(seconds(together), rel=0.02)
    assert prices.step_s(together) < 0.8 * prices.step_s(apart)


def test_a_fit_is_the_same_whatever_the_order_of_the_points() -> None:
    points = machines.measured(0.05)
    one, other = fit(points, machines.features()), fit(points[::-1], machines.features())
    assert one.error == other.error
    assert one.prices == pytest.approx(other.prices)


def test_prices_go_on_beyond_the_largest_step() -> None:
    found = fit(machines.measured(0.0), machines.features())
    assert (found.largest_tokens, found.largest_lines) == (2048, 17)
    beyond = [StepShape(((8000, 8000),), logits=1), StepShape(decodes=(500,) * 256, logits=256)]
    points = [replace(machines.measured(0.0)[0], shape=shape) for shape in beyond]
    predicted = predict(points, found.features(machines.features()), found.prices)
    assert list(predicted) == pytest.approx([machines.seconds(shape) for shape in beyond], rel=0.1)


def test_too_few_steps_give_no_prices() -> None:
    with pytest.raises(RunError, match=r"3 steps were measured, and prices need 8; allow more time"):
        fit(machines.measured(0.0)[:3], machines.features())


def test_stretches_share_out_a_count() -> None:
    assert stretches("t", 5, (1, 2, 4), 10.0) == {"t_1": 10.0, "t_2": 20.0, "t_4": 10.0}
    assert stretches("t", 100, (1, 2, 4), 1.0) == {"t_1": 1.0, "t_2": 2.0, "t_4": 96.0}
    assert stretches("t", 1, (1, 2, 4), 1.0) == {}


def run(
    rows: int, streaming_s: float, loop_s: float = 0.0, *, arrival_s: float = 0.001, gap_s: float = 0.02
) -> DecodeRun:
    """What is seen of `rows` requests where an engine takes `loop_s` between two of 40 steps."""
    return DecodeRun(rows, gap_s, streaming_s, arrival_s + 40 * loop_s, 40)


def test_what_serving_adds_is_told_from_how_long_steps_take() -> None:
    fixed_s, row_s, loop_s, loop_row_s, arrival_s, token_s = 0.002, 0.0004, 0.0003, 0.00001, 0.004, 2e-6

    def seen(rows: int, step_s: float) -> DecodeRun:
        streaming_s = fixed_s + row_s * rows
        between_s = loop_s + loop_row_s * rows
        return run(rows, streaming_s, between_s, arrival_s=arrival_s, gap_s=step_s + between_s + streaming_s)

    found = serving_time(
        [seen(rows, step_s) for rows, step_s in ((1, 0.009), (4, 0.03), (8, 0.025), (16, 0.4))],
        [Refusal(length, arrival_s + length * token_s) for length in (1, 1, 512)],
    )
    assert found.host.step_s == pytest.approx(fixed_s + loop_s, rel=0.01)
    assert found.host.row_s == pytest.approx(row_s + loop_row_s, rel=0.01)
    assert found.arrival_s == pytest.approx(arrival_s, rel=0.01)
    assert found.arrival_token_s == pytest.approx(token_s, rel=0.01)
    assert found.error == pytest.approx(0.0, abs=1e-4)
    assert [(point.rows, point.repeats) for point in found.points] == [(1, 1), (4, 1), (8, 1), (16, 1)]
    assert found.is_of_one_time


def test_of_equal_runs_the_median_counts_and_a_left_out_one_is_predicted() -> None:
    decodes = [run(rows, 0.001 * rows) for rows in (1, 2, 4)]
    found = serving_time([*decodes, run(2, 9.0, 9.0), decodes[1]], [Refusal(1, 0.001)])
    assert found.host.row_s == pytest.approx(0.001)
    assert found.host.step_s == pytest.approx(0.0, abs=1e-6)
    # Half of what 4 rows added is missing from what 1 and 2 rows tell of them where they add the same.
    level = serving_time([*decodes[:2], run(4, 0.002)], [Refusal(1, 0.001)])
    assert level.error is not None
    assert 0.01 < level.error < 0.1


def test_the_engines_own_loop_is_what_passes_outside_steps_while_an_answer_is_made() -> None:
    found = serving_time([run(1, 0.001, 0.003)], [Refusal(1, 0.001)])
    assert found.host.step_s == pytest.approx(0.004)
    assert found.host.row_s == 0.0
    assert found.error is None


def test_a_server_that_is_quicker_by_chance_adds_nothing() -> None:
    decodes = [run(rows, -1e-3, arrival_s=0.0, gap_s=1e-9) for rows in (1, 4)]
    found = serving_time(decodes, [Refusal(1, 1e-9), Refusal(64, 1e-9)])
    assert found.host == HostTime()
    assert found.arrival_s == pytest.approx(1e-9)
