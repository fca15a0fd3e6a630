"""The file of a calibration: what one machine's steps took, and the prices that follow.

One JSON file per chip and machine, with an entry for each model and each way to run it. Fields may be added, never
renamed. All times are seconds.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sglk import atomic_file
from sglk.errors import ConfigError
from sglk.planner.calibration.fitted import FORMS, Fit, FitError, Point
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.features import is_quantity
from sglk.planner.cost.shape import StepShape
from sglk.typed_json import parse, structure

SCHEMA_VERSION = 1

Kind = Literal["measured", "simulated"]

LONGEST_S = 1e6
"""Nothing that a price or a time of a server stands for takes so long."""
NUMBERS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
"""Of a model, that every entry tells at least."""


@dataclass
class Machine:
    """Where steps were measured."""

    device: str
    """Name of the device, such as a processor's or a card's model."""
    devices: int
    """Cores of a processor that may be used, or cards that held the model together."""
    cpu: str
    cores: int
    os: str


@dataclass
class PointRecord:
    """One shape and its time."""

    prefills: list[list[int]]
    """New tokens and context of each prompt chunk."""
    decodes: list[int]
    """Context of each decoding row."""
    logits: int
    drawn: int
    seconds: float
    spread: float
    repeats: int
    shared: int = 0

    @classmethod
    def of(cls, point: Point) -> "PointRecord":
        """Return `point` as the file holds it."""
        shape = point.shape
        prefills = [list(row) for row in shape.prefills]
        decodes, times = list(shape.decodes), (point.seconds, point.spread, point.repeats)
        return cls(prefills, decodes, shape.logits, shape.drawn, *times, shape.shared)

    def point(self) -> Point:
        """Return the point; raises ValueError for one that no step has."""
        if any(len(row) != 2 for row in self.prefills):
            raise ValueError("a prompt chunk has two numbers: new tokens and context")
        chunks = tuple((row[0], row[1]) for row in self.prefills)
        shape = StepShape(chunks, tuple(self.decodes), self.logits, self.drawn, self.shared)
        return Point(shape, self.seconds, self.spread, self.repeats)


@dataclass
class ServingPoint:
    """So many requests that decoded together."""

    rows: int
    gap_s: float
    """Between two tokens of one streamed answer."""
    streaming_s: float
    """By how much that is longer than where answers come whole."""
    repeats: int
    loop_s: float | None = None
    """Between two steps where answers come whole; None = taken for what a step lasted beyond its price."""

    @property
    def added_s(self) -> float:
        """What serving adds to a step, as far as it was measured."""
        return (self.loop_s or 0.0) + self.streaming_s


@dataclass
class ServingRecord:
    """What a server adds around its steps, as clients see it."""

    host: HostTime = field(default_factory=HostTime)
    arrival_s: float = 0.0
    """From a request's sending to the engine's queue."""
    arrival_token_s: float = 0.0
    """For each token of its prompt."""
    delivery_s: float = 0.0
    """From the end of a step to the client."""
    error: float | None = None
    """Median relative error of a gap between tokens whose run was left out; None = not known."""
    points: list[ServingPoint] = field(default_factory=list)
    """None of them, or one without `loop_s`: by a version that took slower minutes for what serving adds."""

    @property
    def is_of_one_time(self) -> bool:
        """Whether nothing of it is the difference of times that a machine's drift may lie between."""
        return bool(self.points) and all(point.loop_s is not None for point in self.points)

    def check(self) -> None:
        """Raise ValueError for a time that is none."""
        times = {name: getattr(self, name) for name in ("arrival_s", "arrival_token_s", "delivery_s")}
        for name, seconds in {**vars(self.host), **times}.items():
            if not 0 <= seconds <= LONGEST_S:
                raise ValueError(f"serving time {name}={seconds:g} is not from 0 to {LONGEST_S:g} s")


@dataclass
class Entry:
    """One model in one way to run it."""

    model: str
    numbers: dict[str, int]
    """What fixes the sizes of its steps: layers, widths, heads."""
    backend: str
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    tp_size: int
    num_threads: int | None
    kind: Kind
    created: str
    command: str
    versions: dict[str, str]
    providers: dict[str, str]
    """Who ran each op."""
    form: str
    largest_tokens: int
    """Of a step that was measured; beyond it the line of time goes on as it ends."""
    largest_lines: int
    """Most lines of logits of one, with the same meaning."""
    prices: dict[str, float]
    """Seconds per operation, byte or call of each quantity."""
    error: FitError
    error_by_kind: dict[str, float]
    points: list[PointRecord]
    serving: ServingRecord | None = None
    """None = not measured."""
    gathers: bool | None = None
    """Whether ranks brought inputs together in place of sums; None = of one rank, or of a version that did not tell."""
    weight_bits: float | None = None
    """That a number of its layers took in memory; None = of a version that did not tell."""
    settings: dict[str, str] | None = None
    """Words of its configuration that steps depend on beside all this; None = of a version that did not tell."""

    def fit(self) -> Fit:
        """Return the prices; raises ValueError for what this version does not know, and for what is no price."""
        for name in NUMBERS:
            # A model of experts alone has but theirs.
            if self.numbers.get(name, 0) < 1 and not (name == "intermediate_size" and "expert_size" in self.numbers):
                raise ValueError(f"model {self.model!r} has no {name} above 0")
        if self.serving is not None:
            self.serving.check()
        if self.form not in FORMS:
            raise ValueError(f"form {self.form!r} is not one of {', '.join(FORMS)}")
        for name, price in self.prices.items():
            if not is_quantity(name):
                raise ValueError(f"quantity {name!r} is unknown")
            if not 0 <= price <= LONGEST_S:
                raise ValueError(f"price of {name!r} is {price:g}, not from 0 to {LONGEST_S:g} s")
        return Fit(self.form, self.largest_tokens, self.largest_lines, self.prices, self.error, self.error_by_kind)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells entries apart."""
        numbers = tuple(sorted(self.numbers.items()))
        run = self.backend, self.dtype, self.kv_cache_dtype, self.quantization, self.tp_size, self.num_threads
        return numbers, *run

    def replaces(self, older: "Entry") -> bool:
        """Return whether `older` says nothing that this one does not."""
        told = (older.gathers, self.gathers), (older.weight_bits, self.weight_bits), (older.settings, self.settings)
        return self.key == older.key and all(theirs in (None, ours) for theirs, ours in told)


@dataclass
class Calibration:
    """All that is known of one machine."""

    chip: str
    machine: Machine
    entries: list[Entry]
    schema_version: int = SCHEMA_VERSION

    def with_entry(self, entry: Entry) -> "Calibration":
        """Return the calibration with `entry` in place of an older one of the same kind."""
        others = [each for each in self.entries if not entry.replaces(each)]
        return Calibration(self.chip, self.machine, [*others, entry])

    def to_json(self) -> str:
        """Return the file's text: points one a line."""
        data = asdict(self)
        marks: dict[str, str] = {}
        for entry in data["entries"]:
            for index, point in enumerate(entry["points"]):
                mark = f"point-{len(marks)}"
                marks[f'"{mark}"'] = json.dumps(point)
                entry["points"][index] = mark
        lines = json.dumps(data, indent=1, ensure_ascii=False).splitlines()
        return "\n".join(_filled(line, marks) for line in lines) + "\n"

    def save(self, path: Path) -> None:
        """Write the file in one step, with its folder; raises OSError."""
        atomic_file.write_text(path, self.to_json())


def _filled(line: str, marks: dict[str, str]) -> str:
    bare = line.strip().removesuffix(",")
    return line.replace(bare, marks[bare]) if bare in marks else line


def read(path: Path) -> Calibration:
    """Return what a file holds; raises ConfigError for one that cannot be read or is no calibration."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise _no_calibration(path, "no regular file")
        value: Any = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the calibration {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise _no_calibration(path, error) from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise _no_calibration(path, f"schema_version is {version!r}, and this version of sglk reads {SCHEMA_VERSION}")
    try:
        found = structure(Calibration, value)
        for entry in found.entries:
            entry.fit()
            for point in entry.points:
                point.point()
    except ValueError as error:
        raise _no_calibration(path, error) from error
    return found


def _no_calibration(path: Path, why: object) -> ConfigError:
    return ConfigError(f"{str(path)!r} is no calibration: {why}; take it away, and run `sglk calibrate` for a new one")
