"""A tuned setting as a profile file: what to run, and everything needed to trust it or refuse it."""

import dataclasses
import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from sglk import __version__, atomic_file
from sglk.bench.record import Record
from sglk.config.profiles import content_hash, engine_range
from sglk.config.provenance import ProfileChip, ProfileModel, ProfileRecord, ProfileSearch, ProfileWorkload
from sglk.config.schema import RuntimeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.config.tune_schema import TuneConfig
from sglk.errors import RunError

VALID_DAYS = 180
"""Drivers, engines and models move on: after this time a profile wants to be measured again."""

NOT_TUNED = frozenset({"load_format", "random_seed"})
"""Runtime values that say how a measurement was made, not how to serve."""


class ProfileStays(RunError):
    """The profile that is there is worth more than the new one."""


@dataclass(frozen=True)
class Finding:
    """What a study found, as far as it goes into a profile."""

    config: TuneConfig
    """Resolved, with the chosen setting in place."""
    defaults: RuntimeConfig
    """What a deployment without any override and profile would run."""
    records: Sequence[Record]
    """Measurements of the chosen setting: those of the closing comparison, or else the trial's."""
    baseline: Sequence[Record]
    """The same of the default configuration; empty when it failed."""
    baseline_failure: str | None
    search: ProfileSearch
    objective: str
    gain: dict[str, Any]
    """Per goal, as in the study's summary; empty where the default stays."""
    verdict: str
    device: dict[str, Any]
    """The server's own words on its device: `name`, `driver`, `sdk` where it knows them."""


def build_profile(finding: Finding) -> dict[str, Any]:
    """Return the content of the profile file: `runtime`, the delta from the defaults, and `profile`, its provenance.

    All of it, dates included, comes from the records: the same study always gives the same file.
    """
    record = finding.records[-1]
    now = datetime.fromisoformat(record.created)
    runtime = {**dataclasses.asdict(finding.config.runtime), **(record.runtime or {})}
    provenance = ProfileRecord(
        kind=record.kind,
        times={group.name: dataclasses.asdict(group.cost) for group in record.simulated_groups or ()},
        created=now.isoformat(timespec="seconds"),
        tool=f"sglk {record.tool.version}" + (f" ({record.tool.commit})" if record.tool.commit else ""),
        command=record.command,
        engine=_engine(record),
        versions={**record.versions, **record.server.versions},
        chip=_chip(finding.config, record, finding.device, runtime["tp_size"]),
        model=_model(finding.config, record),
        workload=_workload(record),
        search=finding.search,
        objective=finding.objective,
        slo=dict(record.load.slo),
        resolved=runtime,
        results=_results(finding.records),
        baseline=_results(finding.baseline) if finding.baseline else {"failed": finding.baseline_failure},
        gain={**finding.gain, "verdict": finding.verdict},
        expires=_last_day(record).isoformat(),
        valid_engine=engine_range(record.tool.version),
        validated=now.date().isoformat(),
    )
    measured = dataclasses.replace(finding.config.runtime, tp_size=runtime["tp_size"])
    content = {"runtime": delta(measured, finding.defaults), "profile": dataclasses.asdict(provenance)}
    content["profile"]["hash"] = content_hash(content)
    return content


def is_outdated(records: Sequence[Record], today: date) -> bool:
    """Tell whether a profile made of `records` would be doubted: it has expired, or this sglk is of another range."""
    return any(
        _last_day(record) < today or engine_range(record.tool.version) != engine_range(__version__)
        for record in records
    )


def delta(runtime: RuntimeConfig, defaults: RuntimeConfig) -> dict[str, Any]:
    """Return the values of `runtime` that differ from the defaults and belong to serving.

    Where any does, several devices are stated too: with other values fewer might be taken than were measured.
    """
    changed = {
        field.name: getattr(runtime, field.name)
        for field in dataclasses.fields(runtime)
        if field.name not in NOT_TUNED and getattr(runtime, field.name) != getattr(defaults, field.name)
    }
    return changed | {"tp_size": runtime.tp_size} if changed and ranks_of(runtime) > 1 else changed


def read_profile(path: Path) -> dict[str, Any]:
    """Return the content of a profile file; raises RunError when it is none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"cannot read the profile '{path}': {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("profile"), dict):
        raise RunError(f"'{path}' is not a profile; it has no `profile` node")
    return content


def write_profile(content: dict[str, Any], path: Path) -> Path | None:
    """Write a profile in one step; return where the profile that was there before is kept, None if there was none.

    The old file moves to `<model>.<first 8 digits of its hash>.yaml.bak`, which no command reads, so nothing that was
    tuned, or written by hand, is lost. A simulated finding never replaces a measured profile: ProfileStays. Raises
    RunError where the file cannot be read or written.
    """
    try:
        return _replace(content, path)
    except OSError as error:
        raise RunError(f"cannot write the profile '{path}': {error.strerror}") from error


def _replace(content: dict[str, Any], path: Path) -> Path | None:
    kept = None
    if path.exists():
        old = path.read_text(encoding="utf-8", errors="replace")
        if content["profile"]["kind"] != "measured" and _is_measured(path):
            raise ProfileStays(f"'{path}' was measured and this study was simulated; the profile stays as it is")
        digest = hashlib.sha256(old.encode()).hexdigest()[:8]
        kept = path.with_name(f"{path.stem}.{digest}.yaml.bak")
        atomic_file.write_text(kept, old)
    atomic_file.write_text(path, render(content))
    return kept


def render(content: dict[str, Any]) -> str:
    """Return a profile as YAML, with the headline figures for people on top."""
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    comments = "".join(f"# {line}\n" for line in _headline(content["profile"], bool(content["runtime"])))
    return f"# @package _global_\n{comments}{body}"


def _headline(profile: dict[str, Any], changed: bool) -> list[str]:
    chip, model, day = profile["chip"], profile["model"]["name"], date.fromisoformat(profile["created"][:10])
    where = f" on {chip['device']}" if chip["device"] else ""
    return [
        f"{profile['kind'].capitalize()} by `sglk tune`, {day}: {profile['objective']} "
        f"under {profile['workload']['name']}{where}.",
        profile["gain"]["verdict"],
        f"`sglk serve` picks this file up for chip {chip['name']} and model {model}; `profiles=none` leaves it out.",
        *([] if changed else ["The default configuration stays: `runtime` is empty on purpose."]),
    ]


def _is_measured(path: Path) -> bool:
    try:
        return bool(read_profile(path)["profile"].get("kind") == "measured")
    except RunError:
        return False


def _last_day(record: Record) -> date:
    return (datetime.fromisoformat(record.created) + timedelta(days=VALID_DAYS)).date()


def _engine(record: Record) -> str:
    """Return engine, version (of one that is not sglk's own) and backend."""
    version = record.server.versions.get(record.engine or "")
    return f"{record.engine}{f' {version}' if version else ''} on {record.backend or 'unknown backend'}"


def _chip(config: TuneConfig, record: Record, device: dict[str, Any], count: int | None) -> ProfileChip:
    return ProfileChip(
        name=config.chip.name,
        count=count or 1,
        device=device.get("name") or record.server.device or record.machine.cpu,
        driver=device.get("driver"),
        sdk=device.get("sdk"),
        memory_gib=config.runtime.device_memory_gib or config.chip.memory_gib or record.machine.memory_gib,
    )


def _model(config: TuneConfig, record: Record) -> ProfileModel:
    model, runtime = config.model, config.runtime
    return ProfileModel(
        name=model.name,
        source=model.path or model.package or model.hub_id,
        revision=model.revision,
        dtype=record.server.dtype or runtime.dtype,
        quantization=runtime.quantization,
        kv_cache_dtype=runtime.kv_cache_dtype,
    )


def _workload(record: Record) -> ProfileWorkload:
    workload = record.workload
    return ProfileWorkload(
        name=workload["name"],
        hash=workload["hash"],
        seed=workload["seed"],
        arrival=workload["arrival"],
        num_requests=workload["num_requests"],
        warmup_requests=workload["warmup_requests"],
    )


def _results(records: Sequence[Record]) -> dict[str, Any]:
    """Return the median over repeats of every figure, and what the engine needed for them."""
    counts, server = records[0].counts, records[0].server
    return {
        **{name: _median([record.summary.get(name) for record in records]) for name in records[0].summary},
        "requests": counts.requests,
        "completed": counts.completed,
        "failed": counts.failed,
        "timeout": counts.timeout,
        "repeats": len(records),
        "peak_memory_bytes": server.peak_memory_bytes,
        "kv_capacity_tokens": server.kv_capacity_tokens,
        "retractions": _median([record.engine_stats.get("retractions") for record in records]),
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
