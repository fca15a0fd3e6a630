"""Studies and runs as one tidy frame: a row per trial or run, a column per parameter and per figure.

Three kinds of columns, told apart by their names: parameters carry the dot of their configuration key
(`runtime.page_size`), `FACTS` say what was measured and how it ended, everything else is a figure in SI units.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sglk.bench.record import Record
from sglk_reports.sources import RunSource, Sources, StudySource
from sglk_reports.study import Trial

FACTS = (
    "study",  # name; empty for runs outside a study
    "role",  # trial | closing | run
    "id",  # trial number or record id
    "source",  # who proposed the trial
    "state",  # COMPLETE | INVALID | PRUNED | FAIL | RUNNING | WAITING
    "reason",
    "log",  # engine log of a trial
    "study_rank",
    "kind",  # measured | simulated | unknown
    "created",
    "chip",
    "device",
    "model",
    "engine",
    "workload",
    "workload_hash",
    "prefix_cache",  # cold | kept: whether earlier runs could warm this one
    "slo",  # limits behind the goodput figures
)
MEASURED_STATE = "COMPLETE"


@dataclass
class _Row:
    facts: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float | None] = field(default_factory=dict)


def tidy(sources: Sources) -> pd.DataFrame:
    """Return all trials, closing measurements and runs of `sources`."""
    rows = [row for study in sources.studies for row in _study_rows(study)]
    rows += [_run_row(run) for run in sources.runs]
    facts = pd.DataFrame([row.facts for row in rows], columns=list(FACTS), dtype=object)
    params = pd.DataFrame([row.params for row in rows], dtype=object)
    figures = pd.DataFrame([row.figures for row in rows]).astype(float)
    return pd.concat([facts, params.sort_index(axis=1), figures], axis=1)


def parameters(frame: pd.DataFrame) -> list[str]:
    """Return the names of the parameter columns."""
    return [name for name in frame.columns if "." in name]


def metrics(frame: pd.DataFrame) -> list[str]:
    """Return the names of the figure columns."""
    return [name for name in frame.columns if "." not in name and name not in FACTS]


def _study_rows(source: StudySource) -> list[_Row]:
    trials = [_trial_row(source, trial) for trial in source.study.trials]
    closing = []
    for number, record in source.closing:
        facts = _study_facts(source) | _record_facts(record) | {"role": "closing", "id": str(number)}
        closing.append(_Row(facts, _params(record), _figures(record)))
    return trials + closing


def _trial_row(source: StudySource, trial: Trial) -> _Row:
    facts = _study_facts(source) | {
        "role": "trial",
        "id": "" if trial.number is None else str(trial.number),
        "source": trial.source,
        "state": trial.state,
        "reason": trial.reason,
        "log": trial.log and str(source.folder / trial.log),
        "study_rank": trial.rank,
    }
    record = source.records.get(-1 if trial.number is None else trial.number)
    if record is None:
        return _Row(facts, _study_params(trial), _named(trial.values))
    facts |= {key: value for key, value in _record_facts(record).items() if key not in ("state", "reason")}
    return _Row(facts, _params(record) | _study_params(trial), _figures(record) | _named(trial.values))


def _study_facts(source: StudySource) -> dict[str, Any]:
    study = source.study
    facts = {
        "study": study.study,
        "kind": study.kind,
        "chip": study.chip,
        "device": study.device,
        "model": study.model,
        "engine": study.engine,
        "workload": study.workload,
    }
    # Trials without a record had the same traffic as those that have one.
    if source.records:
        sibling = _record_facts(next(iter(source.records.values())))
        facts |= {key: sibling[key] for key in ("workload_hash", "prefix_cache", "slo")}
    return facts


def _run_row(run: RunSource) -> _Row:
    facts = _record_facts(run.record) | {"study": "", "role": "run", "id": run.record.id, "source": "bench"}
    return _Row(facts, _params(run.record) | _imagined(run.record), _figures(run.record))


def _imagined(record: Record) -> dict[str, Any]:
    """Return what a simulated run supposed beside its settings: what-ifs are told apart by it."""
    groups = record.simulated_groups or []
    if not groups:
        return {}
    several = len(groups) > 1
    devices = [f"{each.replicas} x {each.chip}" + (f" at {each.weight:g}" if several else "") for each in groups]
    supposed = {"simulate.deployment": " + ".join(devices)}
    costs = [each.cost for each in groups]
    times = [cost.kind if cost.kind == "roofline" else f"{cost.kind} {cost.name}" for cost in costs]
    supposed["simulate.times"] = ", ".join(dict.fromkeys(times))
    return supposed | {f"chip.{name}": value for name, value in groups[0].figures.items()}


def _record_facts(record: Record) -> dict[str, Any]:
    counts = record.counts
    lost = f"{counts.failed} of {counts.requests} requests failed, {counts.timeout} timed out"
    return {
        "state": MEASURED_STATE if record.valid else "INVALID",
        "reason": None if record.valid else record.broken_off or lost,
        "kind": record.kind,
        "created": record.created,
        "chip": record.chip,
        "device": record.server.device or record.machine.cpu,
        "model": record.model,
        "engine": record.engine,
        "workload": record.workload.get("name"),
        "workload_hash": record.workload.get("hash"),
        # Flushing and salting both keep earlier runs out.
        "prefix_cache": "kept" if record.load.cache == "keep" else "cold",
        "slo": _limits(record.load.slo),
    }


def _limits(slo: dict[str, float | None]) -> str:
    return ", ".join(f"{name}<={limit:g}" for name, limit in sorted(slo.items()) if limit is not None)


def _params(record: Record) -> dict[str, Any]:
    return _flat({f"runtime.{name}": value for name, value in (record.runtime or {}).items()})


def _flat(params: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in params.items()}


def _figures(record: Record) -> dict[str, float | None]:
    own = {
        "duration_s": record.duration_s,
        "failed_requests": float(record.counts.failed + record.counts.timeout),
        "peak_memory_bytes": record.server.peak_memory_bytes,
        "kv_capacity_tokens": record.server.kv_capacity_tokens,
    }
    return _named(record.summary | own | {f"engine_{name}": value for name, value in record.engine_stats.items()})


def _study_params(trial: Trial) -> dict[str, Any]:
    return _flat({key: value for key, value in trial.params.items() if "." in key})


def _named(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the figures whose names are those of figures: a file may call one like a fact or a parameter."""
    return {name: value for name, value in figures.items() if name not in FACTS and "." not in name}
