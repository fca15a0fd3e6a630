"""A calibration is held against what steps take now, and told as fast as the machine is."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fidelity_pace import DECODES, PREFILLS, Calibrated, Pacer, mean
from sglk.cli import main
from sglk.config.compose import Composed, compose
from sglk.config.fleet import replica_configs
from sglk.config.simulate_schema import SimulateConfig
from sglk.planner.calibration.record import ServingPoint, ServingRecord, read
from sglk.planner.cost.calibrated import HostTime
from sglk.simulation.run import simulate
from sglk.testing.tiny import write_tiny_model

SERVING = ServingRecord(HostTime(0.002, 0.0001), 0.004, 1e-6, points=[ServingPoint(1, 0.01, 0.001, 4, 0.001)])


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrated:
    monkeypatch.chdir(tmp_path)
    model = write_tiny_model(tmp_path / "tiny")
    words = ["chip=cpu", "backend=sim", f"model={model}", "chip.bandwidth_gb_s=20", "chip.peak_tflops={fp32: 0.2}"]
    assert main(["calibrate", *words, "calibrate.repeats=1", "calibrate.context_length=256"]) == 0
    (path,) = Path("calibration").iterdir()
    calibration = read(path)
    calibration.entries[0].serving = SERVING
    calibration.save(path)
    return Calibrated.read(path, words)


def test_the_pace_is_how_much_longer_steps_take_than_their_prices(calibrated: Calibrated) -> None:
    assert calibrated.pace(calibrated.expected) == pytest.approx(1.0)
    assert calibrated.pace([1.3 * seconds for seconds in calibrated.expected]) == pytest.approx(1.3)
    # Prompts count as much as decodes, of which there are more.
    slow, count = 4.0, len(PREFILLS)
    prompts = [slow * seconds for seconds in calibrated.expected[:count]]
    assert calibrated.pace([*prompts, *calibrated.expected[count:]]) == pytest.approx(2.0)
    assert len(calibrated.expected) == len(PREFILLS) + len(DECODES)


def test_what_serving_adds_is_no_part_of_a_step_that_is_taken_alone(calibrated: Calibrated) -> None:
    (entry,) = calibrated.calibration.entries
    bare = replace(calibrated.calibration, entries=[replace(entry, serving=None)])
    bare.save(Path("bare.json"))
    words = [f"model={Path('tiny').absolute()}", "chip=cpu", "backend=sim", "chip.bandwidth_gb_s=20"]
    assert Calibrated.read(Path("bare.json"), words).expected == calibrated.expected


def test_all_that_is_simulated_takes_as_many_times_as_long(calibrated: Calibrated) -> None:
    words = [
        f"model={Path('tiny').absolute()}", "chip=cpu", "backend=sim", "profiles=none", "workload=random",
        "workload.num_requests=4", "workload.input_len=24", "workload.output_len=8", "workload.concurrency=2",
    ]  # fmt: skip
    composed: Composed[SimulateConfig] = compose("simulate", words)

    def figures(pace: float) -> dict[str, float]:
        place = str(calibrated.at(pace, Path("now.json")))
        summary = simulate(composed.config, replica_configs(composed), calibration=place).summary
        return {name: summary[name] or 0.0 for name in ("output_throughput", "tpot_s_p50", "ttft_s_p99")}

    plain, slow = figures(1.0), figures(1.25)
    assert slow["output_throughput"] == pytest.approx(plain["output_throughput"] / 1.25, rel=1e-3)
    assert slow["tpot_s_p50"] == pytest.approx(plain["tpot_s_p50"] * 1.25, rel=1e-3)
    assert slow["ttft_s_p99"] == pytest.approx(plain["ttft_s_p99"] * 1.25, rel=1e-3)


def test_steps_are_taken_in_a_process_of_their_own(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with Pacer(["chip=cpu", f"model={model}", "runtime.max_total_tokens=4096"]) as pacer:
        found = [pacer.seconds(), pacer.seconds()]
    assert all(seconds > 0 for seconds in mean(found))
    assert len(mean(found)) == len(PREFILLS) + len(DECODES)
