"""Settings of the commands that look at single ops."""

from dataclasses import dataclass, field
from typing import Optional

from sglk.config.schema import ServeConfig


@dataclass
class TrialOpsConfig:
    """The calls that single ops are listed, tested and timed with."""

    batch: int = 8
    """Requests of a decode step."""
    context: Optional[int] = None
    """Tokens of each of them, the new one included; null = 1024, or the model's window where that is smaller."""
    prompt: Optional[int] = None
    """Tokens of the prompt that a prefill computes, in chunks of `runtime.chunked_prefill_size`; null as above."""
    seed: int = 0
    """Fills the arguments."""
    time_s: float = 0.5
    """How long each op is timed at each shape."""
    timeout_s: float = 600.0
    """How long a trial of one op at one shape may take, and opening the device; what takes longer hangs."""
    failures: str = "op-failures"
    """Folder that scripts which show a failure again are written to."""
    progress: bool = True


@dataclass
class OpsConfig(ServeConfig):
    """Root of `ops.yaml`: a deployment, whose ops are looked at one by one."""

    ops: TrialOpsConfig = field(default_factory=TrialOpsConfig)
