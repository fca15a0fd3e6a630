"""`summary.json` of a study folder: all that a report needs, written again after every trial.

Readers outside this package take the JSON from the disk. Its shape is that of the dataclasses below, field for field:

    <study.directory>/<name>/summary.json
    {
      "schema": "sglk.study/1",
      "study": "cpu-smollm2-chat-throughput",
      "status": "finished",                            # running | interrupted | finished | failed
      "created": "2026-11-29T12:00:00+00:00", "updated": "...",
      "kind": "measured",                              # measured | simulated | unknown (nothing measured yet)
      "chip": "cpu", "device": "AMD EPYC", "model": "smollm2", "engine": "native", "workload": "chat",
      "objective": "throughput",
      "goals": [{"metric": "output_throughput", "direction": "maximize"}],
      "slo": {"ttft_s": null, "tpot_s": null, "e2e_s": null},
      "space": {"runtime.max_running_requests": [4, 8]}, "space_hash": "...",
      "sampler": "grid", "seed": 0,
      "impossible": [{"params": {...}, "reason": "..."}],      # pruned before measuring
      "planned": 12,                                   # settings in the study's budget, the default included
      "done": 5,                                       # how many of them have a result, good or bad
      "trials": [                                      # in order of their numbers, then the points still to run
        {
          "number": 0,                                 # null for a point that still waits
          "state": "COMPLETE",                         # COMPLETE | PRUNED | FAIL | RUNNING | WAITING
          "source": "default",                         # default | carried | grid | random | tpe | control | retry
          "params": {"runtime.max_running_requests": 8},
          "values": {"output_throughput": 123.4},      # one per goal; empty unless COMPLETE
          "rank": 1,                                   # place by the study's rule among COMPLETE; null otherwise
          "pareto": true,                              # on the Pareto front
          "reason": null,                              # why it failed or was pruned
          "record": "trials/000.json",                 # bench record, relative to this file; null = none
          "log": "engine-1.log",                       # engine log, relative to this file
          "started": "...", "duration_s": 12.5
        }
      ],
      "baseline": 0,                                   # number of the default configuration's trial
      "winner": 7,                                     # number of the trial that the rule picks; null = none (yet)
      "rule": "...",                                   # the rule in words
      "closing": {                                     # null until the closing comparison has run
        "default": 0, "winner": 7,                     # the two trials compared; `winner` here is the challenger
        "accepted": true,                              # false = the default stays (then "winner" above is the default)
        "repeats": 1, "unreliable": [],                # picked by the rule before, but failed when repeated
        "measurements": [{"number": 0, "values": {...}, "record": "closing/000-1.json", "reason": null}],
        "gain": {"output_throughput": {"ratio": 1.2, "low": 1.1, "high": 1.3, "pairs": 3, "method": "..."}},
        "beyond_noise": true,                          # null when it cannot be judged
        "verdict": "..."                               # one sentence
      },
      "profile": "profiles/cpu/smollm2.yaml"           # path as written, null = none
    }

`ratio` above 1 always means better than the default, whatever the direction of the goal.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglk import atomic_file
from sglk.errors import RunError
from sglk.typed_json import parse, structure

SCHEMA = "sglk.study/1"


@dataclass
class TrialSummary:
    """One setting and what became of it."""

    number: int | None
    state: str
    source: str
    params: dict[str, Any]
    values: dict[str, float] = field(default_factory=dict)
    rank: int | None = None
    pareto: bool = False
    reason: str | None = None
    record: str | None = None
    log: str | None = None
    started: str | None = None
    duration_s: float | None = None


@dataclass
class StudySummary:
    """One study as it stands."""

    study: str
    status: str
    created: str
    updated: str
    kind: str
    chip: str
    device: str | None
    model: str
    engine: str
    workload: str
    objective: str
    goals: list[dict[str, str]]
    slo: dict[str, float | None]
    space: dict[str, list[Any]]
    space_hash: str
    sampler: str
    seed: int
    impossible: list[dict[str, Any]]
    planned: int
    done: int
    trials: list[TrialSummary]
    baseline: int | None
    winner: int | None
    rule: str
    closing: dict[str, Any] | None
    profile: str | None
    schema: str = SCHEMA


def read_summary(folder: Path) -> StudySummary:
    """Return the summary in a study's folder; raises RunError where there is none that can be read."""
    path = folder / "summary.json"
    try:
        summary = structure(StudySummary, parse(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise RunError(f"cannot read the study '{path}': {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"'{path}' is not the summary of a study: {error}") from error
    if summary.schema != SCHEMA:
        raise RunError(f"'{path}' has schema {summary.schema!r}; this sglk reads {SCHEMA!r}")
    return summary


def write_summary(summary: StudySummary, folder: Path) -> None:
    """Write `summary.json` into the study's folder. Raises RunError, such as for a full disk."""
    text, path = json.dumps(asdict(summary), indent=2, allow_nan=False), folder / "summary.json"
    try:
        atomic_file.write_text(path, text + "\n")
    except OSError as error:
        raise RunError(f"cannot write the summary '{path}': {error.strerror}") from error
