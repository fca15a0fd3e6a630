"""Settings of a simulation."""

from dataclasses import dataclass, field
from typing import Optional

from sglk.config.bench_schema import BenchConfig


@dataclass
class WhatIfConfig:
    """A deployment other than the composed one, and the way to it."""

    replicas: Optional[int] = None
    """Engines side by side, each on `runtime.tp_size` devices; null = as `groups` says."""
    arrival_s: Optional[float] = None
    """From a request's sending to the engine's queue, one request after another; null = as calibrated, or else 2 ms."""
    delivery_s: Optional[float] = None
    """From the end of a step to the client; null = as calibrated, or else 1 ms."""


@dataclass
class SimulateConfig(BenchConfig):
    """Root of `simulate.yaml`: a deployment, a workload, and what is to be different about them."""

    simulate: WhatIfConfig = field(default_factory=WhatIfConfig)
    calibration: str = "auto"
    """`auto` (of this machine, in ./calibration), `none` (peak figures), or a file."""
