"""What a tuned profile records about itself, so that a reader can trust it or refuse it."""

from dataclasses import dataclass, field
from typing import Any, Optional

SCHEMA_VERSION = 1


@dataclass
class ProfileChip:
    """The device that was measured."""

    name: str = "?"
    count: int = 1
    device: Optional[str] = None
    """What the machine calls it, such as the CPU's model name."""
    driver: Optional[str] = None
    sdk: Optional[str] = None
    memory_gib: Optional[float] = None


@dataclass
class ProfileModel:
    """The model that was measured."""

    name: str = "?"
    source: Optional[str] = None
    revision: Optional[str] = None
    dtype: Optional[str] = None
    quantization: Optional[str] = None
    kv_cache_dtype: Optional[str] = None


@dataclass
class ProfileWorkload:
    """The traffic that was measured."""

    name: str = "?"
    hash: Optional[str] = None
    """SHA-256 of the resolved workload."""
    seed: int = 0
    arrival: Optional[str] = None
    num_requests: int = 0
    warmup_requests: int = 0


@dataclass
class ProfileSearch:
    """How the setting was found."""

    study: str = "?"
    sampler: Optional[str] = None
    seed: int = 0
    space_hash: Optional[str] = None
    trials: dict[str, int] = field(default_factory=dict)
    """Number of trials per Optuna state."""
    rule: Optional[str] = None
    """The rule that chose this setting among the trials."""


@dataclass
class ProfileRecord:
    """Provenance of one profile; figures are those of a bench record's summary, SI units."""

    schema_version: int = SCHEMA_VERSION
    hash: Optional[str] = None
    """SHA-256 of the profile's content without this field."""
    kind: str = "measured"
    """`measured` or `simulated`."""
    times: dict[str, Any] = field(default_factory=dict)
    """Of a simulated one, by device group: what the times of steps rest on, and how far they are to be trusted."""
    created: Optional[str] = None
    """UTC, ISO 8601."""
    tool: Optional[str] = None
    """sglk version and commit."""
    command: Optional[str] = None
    """What was typed, without keys."""
    engine: Optional[str] = None
    """Engine and backend with versions."""
    versions: dict[str, str] = field(default_factory=dict)
    chip: ProfileChip = field(default_factory=ProfileChip)
    model: ProfileModel = field(default_factory=ProfileModel)
    workload: ProfileWorkload = field(default_factory=ProfileWorkload)
    search: ProfileSearch = field(default_factory=ProfileSearch)
    objective: Optional[str] = None
    slo: dict[str, Optional[float]] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    """The whole runtime configuration that was measured; `runtime` beside this node is its delta from the defaults."""
    results: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Any] = field(default_factory=dict)
    """The default configuration, measured in the same session."""
    gain: dict[str, Any] = field(default_factory=dict)
    """Per goal: ratio to the baseline, with the interval over repeats."""
    expires: Optional[str] = None
    valid_engine: Optional[str] = None
    """Version range of sglk for which the profile holds."""
    validated: Optional[str] = None
    """Last time the profile was measured again."""
