"""Prices come out of measured steps as they went in, and their error is told honestly."""

from dataclasses import replace

import pytest

from sglk.errors import RunError
from sglk.planner.calibration.fit import fit, predict
from sglk.planner.calibration.serving import DecodeRun, FirstToken, serving_time
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


def test_what_serving_adds_is_what_clients_see_beyond_the_steps() -> None:
    host_s, row_s, token_s, arrival_s = 0.002, 0.0004, 2e-6, 0.004

    def seen(shape: StepShape) -> float:
        return machines.seconds(shape) + host_s + row_s * shape.logits

    decodes = [DecodeRun(rows, 40, seen(StepShape(decodes=(40,) * rows, logits=rows))) for rows in (1, 8, 16)]
    firsts = [
        FirstToken(16, arrival_s + 16 * token_s + seen(StepShape(((16, 16),), logits=1))),
        FirstToken(512, arrival_s + 512 * token_s + seen(StepShape(((512, 512),), logits=1))),
    ]
    found = serving_time(decodes, firsts, 512, machines.seconds)
    assert found.host.step_s == pytest.approx(host_s, rel=0.01)
    assert found.host.row_s == pytest.approx(row_s, rel=0.01)
    assert found.host.prompt_token_s == pytest.approx(token_s, rel=0.01)
    assert found.arrival_s == pytest.approx(arrival_s, rel=0.01)


def test_a_server_quicker_than_its_steps_adds_nothing() -> None:
    found = serving_time(
        [DecodeRun(rows, 40, 1e-9) for rows in (1, 4)],
        [FirstToken(16, 1e-9), FirstToken(64, 1e-9)],
        64,
        machines.seconds,
    )
    assert (found.host, found.arrival_s) == (HostTime(), 0.0)
