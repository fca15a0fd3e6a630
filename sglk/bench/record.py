"""The record of one benchmark run: what a number is worth, beside the number.

One JSON file per run. The tuner and the reports read it and nothing else, so its shape is a contract: fields may be
added, never renamed. All times are seconds, all figures are finite, and what is unknown is null.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sglk import atomic_file
from sglk.errors import RunError
from sglk.typed_json import parse, structure

SCHEMA_VERSION = 1

Kind = Literal["measured", "simulated"]
Phase = Literal["warmup", "measured"]
Status = Literal["ok", "failed", "timeout"]


@dataclass
class RequestRecord:
    """One request, as the client saw it."""

    index: int
    """Order within its phase."""
    phase: Phase
    status: Status
    sent_s: float | None = None
    """Intended send time since the start of the phase; null = never sent."""
    ttft_s: float | None = None
    """First token minus the intended send time."""
    e2e_s: float | None = None
    """Last token (or failure) minus the intended send time."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server answered from its prefix cache."""
    shared_tokens: int = 0
    """Leading prompt tokens that the workload shares with earlier requests on purpose: those may be cached."""
    estimated: bool = False
    """The server reported no usage and `completion_tokens` is an estimate."""
    itl_s: list[float] = field(default_factory=list)
    """Gaps between the pieces of the answer, in order."""
    finish_reason: str | None = None
    error: str | None = None
    asked_tokens: int | None = None
    """Tokens that the answer should have: requests forbid the server to stop before."""

    @property
    def ok(self) -> bool:
        """Whether the answer arrived whole."""
        return self.status == "ok"

    @property
    def short(self) -> bool:
        """Whether a whole answer has fewer tokens than were asked for; an estimate alone is no proof of that."""
        if not self.ok or self.completion_tokens is None or self.asked_tokens is None:
            return False
        known = not self.estimated or self.finish_reason == "stop"
        return known and self.completion_tokens < self.asked_tokens

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: (e2e - ttft)/(n - 1), absent for an answer of one token or none."""
        if self.ttft_s is None or self.e2e_s is None or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.completion_tokens - 1)


@dataclass
class ToolRecord:
    """The sglk that measured."""

    version: str
    commit: str | None = None


@dataclass
class MachineRecord:
    """The machine that the client ran on, which is also the server's where the run launched it."""

    cpu: str
    cores: int
    memory_gib: float | None
    os: str


@dataclass
class ServerRecord:
    """What the server says of itself; null where it does not say."""

    runtime: dict[str, Any] | None = None
    kv_capacity_tokens: int | None = None
    weights_bytes: int | None = None
    peak_memory_bytes: int | None = None
    device: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    dtype: str | None = None
    profile: Any = None


@dataclass
class LoadRecord:
    """How the server was driven."""

    api: str
    cache: str
    """The policy that was carried out: `flush`, `salt` or `keep`."""
    url: str
    """Address of a running server, `launched` or `simulated`."""
    timeout_s: float
    max_failure_rate: float = 0.01
    salt: str | None = None
    """With the seed, makes the salted prompts again."""
    tokens_per_word: float | None = None
    """Measured on the server, for workloads made of words."""
    slo: dict[str, float | None] = field(default_factory=dict)
    sessions: bool = False
    """Whether conversations named themselves, so that device groups kept them where they were."""


@dataclass
class Counts:
    """Requests by what became of them; `requests` are the measured ones, warm-up is counted apart."""

    requests: int
    completed: int
    failed: int
    timeout: int
    warmup: int
    short: int = 0
    """Completed ones with fewer tokens than were asked for."""


@dataclass
class CostRecord:
    """What the times of a simulated device rest on."""

    kind: str
    """`roofline` (peak figures of the chip's file, never compared with a device) or `calibration`."""
    name: str
    """Chip, or file of the calibration."""
    error: float | None = None
    """Median relative error of a step in the calibration's cross-validation."""
    notes: list[str] = field(default_factory=list)


@dataclass
class GroupRecord:
    """One device group of a simulated deployment."""

    name: str
    chip: str
    model: str
    weight: float
    replicas: int
    devices: int
    """All replicas together."""
    requests: int
    """Measured requests that it answered."""
    busy_share: float
    """Part of the run that its engines spent in steps, on average."""
    kv_capacity_tokens: int
    """Of one replica."""
    kv_bytes_per_token: int
    """On one device."""
    peak_kv_tokens: int
    """Most tokens of one replica that live requests held at a time."""
    weights_bytes: int
    """Of one device."""
    runtime: dict[str, Any]
    cost: CostRecord
    summary: dict[str, float | None]
    engine_stats: dict[str, float]
    figures: dict[str, float] = field(default_factory=dict)
    """Of its chip: memory and rates, as far as they are stated."""


@dataclass
class Record:
    """One benchmark run."""

    id: str
    kind: Kind
    created: str
    """UTC, ISO 8601."""
    command: str | None
    tool: ToolRecord
    machine: MachineRecord
    versions: dict[str, str]
    chip: str | None
    model: str | None
    engine: str | None
    backend: str | None
    server: ServerRecord
    runtime: dict[str, Any] | None
    """The resolved runtime parameters; null = the server does not say."""
    workload: dict[str, Any]
    """Fields of WorkloadConfig, and `hash`."""
    load: LoadRecord
    counts: Counts
    duration_s: float
    """From the first intended send to the end of the last request."""
    valid: bool
    """Something completed, no more failed than `load.max_failure_rate` allows, and the run came to its end."""
    summary: dict[str, float | None]
    engine_stats: dict[str, float] = field(default_factory=dict)
    """What the engine's counters grew by during the run."""
    warnings: list[str] = field(default_factory=list)
    simulated_groups: list[GroupRecord] | None = None
    """Of a run on the virtual clock, each device group; null = a server answered."""
    broken_off: str | None = None
    """Why the run ended before its end, such as an interruption; its figures are those of what had been answered."""
    requests: list[RequestRecord] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Return the record as JSON text: schema version first, requests last and one a line."""
        data = asdict(replace(self, requests=[]))
        del data["requests"]
        requests = [json.dumps(vars(request), allow_nan=False) for request in self.requests]
        head = json.dumps({"schema_version": data.pop("schema_version"), **data}, indent=1, allow_nan=False)
        lines = ",\n  ".join(requests)
        return f'{head.removesuffix("}").rstrip()},\n "requests": [\n  {lines}\n ]\n}}'

    @classmethod
    def from_json(cls, text: str, *, source: str = "record") -> "Record":
        """Parse and check a record; `source` names it in the message. Raises RunError."""
        try:
            data = parse(text)
            version = data.get("schema_version") if isinstance(data, dict) else None
            if version != SCHEMA_VERSION:
                raise ValueError(f"schema_version: expected {SCHEMA_VERSION}, got {version!r}")
            return structure(cls, data)
        except ValueError as error:
            raise RunError(f"{source} is not a benchmark record: {error}") from error

    @classmethod
    def load_file(cls, path: Path) -> "Record":
        """Read a record file. Raises RunError if it cannot be read or is damaged."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot read record {str(path)!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RunError(f"{str(path)!r} is not a benchmark record: {error}") from error
        return cls.from_json(text, source=repr(str(path)))

    def save(self, path: Path) -> None:
        """Write the record, whole or not at all. Raises RunError, such as for a full disk."""
        try:
            atomic_file.write_text(path, self.to_json() + "\n")
        except OSError as error:
            raise RunError(f"cannot write record {str(path)!r}: {error.strerror}") from error
