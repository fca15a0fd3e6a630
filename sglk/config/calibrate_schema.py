"""Settings of a calibration."""

from dataclasses import dataclass, field

from sglk.config.schema import ServeConfig


@dataclass
class CalibrationConfig:
    """Which steps of the engine are measured, and how often."""

    context_length: int = 2048
    """Longest context of a request that is measured; what longer ones take follows from the rise."""
    repeats: int = 5
    """Measurements of each step, the median of which counts."""
    time_s: float = 240.0
    """No further round of measurements begins later than that."""
    longest_step_s: float = 4.0
    """Where one step takes longer, larger ones of its kind are left out."""
    serving: bool = True
    """Measure also what a server and its clients add to the steps, with the load generator of `sglk bench`."""
    folder: str = "calibration"
    """Where `<chip>-<machine>.json` is written, beside the models that it has already."""
    progress: bool = True


@dataclass
class CalibrateConfig(ServeConfig):
    """Root of `calibrate.yaml`: a deployment of one replica, and the effort."""

    calibrate: CalibrationConfig = field(default_factory=CalibrationConfig)
