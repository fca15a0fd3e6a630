"""Rules of a simulation."""

import math
from collections.abc import Iterator

from sglk.config.engine_schema import EngineConfig
from sglk.config.profiles import NATIVE
from sglk.config.ranges import at_least
from sglk.config.simulate_schema import SimulateConfig

_MOST_REPLICAS = 1024
"""Each has a scheduler and caches of its own, and the router looks at all of them for each request."""


def simulation_problems(config: SimulateConfig) -> Iterator[str]:
    """Yield what is wrong with what is to be simulated."""
    count = config.simulate.replicas
    yield from at_least("simulate.replicas", count, 1)
    if count is not None and count > _MOST_REPLICAS:
        yield f"simulate.replicas={count} is too large; it is at most {_MOST_REPLICAS}"
    for name in ("arrival_s", "delivery_s"):
        value = getattr(config.simulate, name)
        if value is not None and not 0 <= value < math.inf:
            yield f"simulate.{name}={value:g} is not a time; give seconds from 0 up"
    yield from not_simulated(config.engine)
    if config.bench.url is not None:
        yield f"bench.url={config.bench.url} is a running server, and a simulation asks none; leave it out"
    if not config.calibration:
        yield "calibration is empty; write auto, none or the path of a file"


def not_simulated(engine: EngineConfig) -> Iterator[str]:
    """Yield that an engine cannot be simulated, where it is not our own."""
    if engine.name != NATIVE:
        yield f"engine={engine.name} has a scheduler of its own, which cannot be simulated; leave out engine"
