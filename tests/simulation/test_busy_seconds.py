from array import array

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.core import Core
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.shape import StepShape
from sglk.simulation.clock import VirtualClock
from sglk.simulation.deployment import PlannedDevice
from sglk.simulation.engine import VirtualEngine


def test_busy_seconds_are_without_the_host_s_part_as_a_server_counts_them() -> None:
    host, clock = HostTime(step_s=0.25, row_s=0.125), VirtualClock()

    def step_s(shape: StepShape) -> float:
        return 1.0 + host.of(shape)

    core = Core.build(PlannedDevice(100, 64, 512), RuntimeConfig(), frozenset())
    engine = VirtualEngine("a/0", core, step_s, clock, {}, host=host)
    for name in ("one", "two"):
        sampling = SamplingParams(max_new_tokens=5, temperature=0.0, ignore_eos=True, seed=1)
        engine.submit(GenerateRequest(name, array("I", range(20)), sampling), lambda _: None)
    clock.run()

    stats = engine.stats()
    assert stats.steps >= 5
    assert stats.busy_s == pytest.approx(stats.steps)
    assert engine.busy_s == pytest.approx(clock.now) == pytest.approx(stats.steps * 1.25 + 10 * 0.125)
