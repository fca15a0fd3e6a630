"""Settings of a memory plan."""

from dataclasses import dataclass, field
from typing import Optional

from sglk.config.schema import ServeConfig


@dataclass
class RoomConfig:
    """What has to have room in a deployment's memory."""

    context_length: Optional[int] = None
    """Tokens of prompt and answer of each request, `runtime.context_length` at most; null = that, or else the model's
    own."""
    requests: int = 1
    """Requests of that length that must have room at the same time, in each replica."""
    engine: Optional[str] = None
    """`native`, or `sglang` for its automatic values beside ours; null = `engine.name`."""


@dataclass
class PlanConfig(ServeConfig):
    """Root of `plan.yaml`: a deployment, and what it has to have room for."""

    plan: RoomConfig = field(default_factory=RoomConfig)
    calibration: str = "auto"
    """`auto` (of this machine, in ./calibration), `none` (peak figures), or a file or folder."""
