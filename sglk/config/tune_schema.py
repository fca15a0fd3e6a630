"""Settings of a study: its goal, its search, and where it lives."""

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

from sglk.config.bench_schema import BenchConfig, SloConfig


@dataclass
class ObjectiveConfig:
    """What a study optimises."""

    name: str = MISSING
    goals: list[str] = field(default_factory=list)
    """`maximize:METRIC` or `minimize:METRIC`, METRIC a summary figure of a record; two or more = Pareto front."""
    slo: SloConfig = field(default_factory=SloConfig)


@dataclass
class SearchConfig:
    """How a study searches."""

    name: str = MISSING
    sampler: str = "grid"
    """Optuna study sampler: `grid`, `random` or `tpe`."""
    space: dict[str, list[Any]] = field(default_factory=dict)
    """Candidates per key, such as `runtime.chunked_prefill_size: [512, 1024]`."""
    n_trials: Optional[int] = None
    """Trials in total, resumed ones included; null = the whole grid (`grid`) or 20."""
    seed: int = 0
    pruner: str = "none"
    """`none` or `median` (one goal only)."""
    retry_failed: bool = False
    start_from: Optional[str] = None
    """Folder of another study, of any chip, measured or simulated, whose best settings are tried first."""


@dataclass
class StudyConfig:
    """Where a study lives and how it treats failures."""

    name: Optional[str] = None
    """null = `<chip>-<model>-<workload>-<objective>`."""
    storage: Optional[str] = None
    """Address of an SQL database, as Optuna takes it; null = SQLite in `studies/`."""
    directory: str = "studies"
    """Trial records and engine logs are kept in `<directory>/<name>/`."""
    trial_timeout_s: float = 1800.0
    start_timeout_s: float = 300.0
    repeats: int = 3
    """Measurements of the default and the winner in the closing comparison."""
    simulate: bool = False
    """Simulate every setting as `sglk simulate` does, with no device; the winner is marked as simulated."""
    save_profile: bool = True
    profiles: str = "profiles"
    """Folder the winner is written to, as `<chip>/<model>.yaml`."""


@dataclass
class TuneConfig(BenchConfig):
    """Root of `tune.yaml`: a benchmark, the space around it, and the goal."""

    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    calibration: str = "auto"
    """Where the times of `study.simulate` come from, as for `sglk simulate`: `auto`, `none`, or a file."""
