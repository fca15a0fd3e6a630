"""Small real record files and study folders, written as the benchmark and the tuner write them."""

import hashlib
from itertools import product
from pathlib import Path
from typing import Any

from sglk_tuner.choice import ranking, rule_of
from sglk_tuner.objective import Goal
from sglk_tuner.summary import StudySummary, TrialSummary, write_summary

from sglk.bench.metrics import count, duration, summarise
from sglk.bench.record import Kind, LoadRecord, MachineRecord, Record, RequestRecord, ServerRecord, ToolRecord
from sglk.config.bench_schema import SloConfig

CHUNK, WINDOW = "runtime.chunked_prefill_size", "runtime.max_running_requests"
SPACE = {CHUNK: [512, 1024], WINDOW: [4, 8, 16]}
DEFAULT = {CHUNK: 512, WINDOW: 8}


def requests(
    ttft_s: float, tpot_s: float, *, count: int = 12, failed: int = 0, tokens: int = 32
) -> list[RequestRecord]:
    """Return requests one after another, the first `failed` of them refused; every third one is slower."""
    found, clock = [], 0.0
    for index in range(count):
        slow = 1.6 if index % 3 == 0 else 1.0
        first, gap = ttft_s * slow, tpot_s * slow
        e2e_s = first + gap * (tokens - 1)
        if index < failed:
            found.append(RequestRecord(index, "measured", "failed", clock, e2e_s=0.01, error="HTTP 503"))
        else:
            gaps = [gap] * (tokens - 1)
            found.append(RequestRecord(index, "measured", "ok", clock, first, e2e_s, 64, tokens, 0, itl_s=gaps))
        clock += e2e_s / 4
    return found


def record(
    name: str,
    *,
    ttft_s: float = 0.2,
    tpot_s: float = 0.02,
    failed: int = 0,
    chip: str = "cpu",
    model: str = "smollm2",
    kind: Kind = "measured",
    runtime: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    slo: SloConfig | None = None,
    cache: str = "flush",
) -> Record:
    """Return the record of one run, its figures computed from its requests."""
    raw = requests(ttft_s, tpot_s, failed=failed)
    counts = count(raw)
    slo = slo or SloConfig()
    shape = {"name": "chat", "input_len": 64, "output_len": 32, "arrival": "closed", "concurrency": 4, "seed": 0}
    shape |= workload or {}
    runtime = {"chunked_prefill_size": 512, "max_running_requests": 8, "schedule_policy": "fcfs"} | (runtime or {})
    return Record(
        id=name,
        kind=kind,
        created="2026-11-29T12:00:00+00:00",
        command="sglk bench",
        tool=ToolRecord("0.1.0", "0123456789ab"),
        machine=MachineRecord("Example CPU", 2, 8.0, "Linux"),
        versions={"python": "3.11.9"},
        chip=chip,
        model=model,
        engine="native",
        backend="sim" if kind == "simulated" else chip,
        server=ServerRecord(runtime=runtime, device=f"Example {chip}", versions={"torch": "2.13.0"}),
        runtime=runtime,
        workload={**shape, "hash": hashlib.sha256(repr(sorted(shape.items())).encode()).hexdigest()},
        load=LoadRecord("chat", cache, "launched", 600.0, slo=vars(slo)),
        counts=counts,
        duration_s=duration(raw),
        valid=counts.failed == 0 and counts.completed > 0,
        summary=summarise(raw, slo),
        requests=raw,
    )


def speeds(params: dict[str, Any]) -> tuple[float, float]:
    """Return TTFT and TPOT in seconds of an imagined engine: wide windows gain throughput and lose latency."""
    chunk, window = params[CHUNK], params[WINDOW]
    return 0.05 * window * (512 / chunk) ** 0.5, 0.04 / window**0.6


def study(
    root: Path,
    name: str = "cpu-smollm2-chat-balanced",
    *,
    chip: str = "cpu",
    kind: Kind = "measured",
    goals: tuple[Goal, ...] = (Goal("output_throughput", "maximize"), Goal("ttft_s_p99", "minimize")),
    failing: dict[str, Any] | None = None,
    reason: str = "engine ended with exit code 137 (out of memory)",
    kept: int | None = None,
) -> Path:
    """Write a finished grid study below `root` and return its folder.

    The setting `failing` has no record. `kept` is the trial that the closing comparison chose instead of the first.
    """
    folder = root / name
    points = [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
    points.sort(key=lambda params: params != DEFAULT)
    trials = []
    for number, params in enumerate(points):
        source = "default" if params == DEFAULT else "grid"
        if params == failing:
            trials.append(TrialSummary(number, "FAIL", source, params, reason=reason, log="engine-1.log"))
            continue
        ttft_s, tpot_s = speeds(params)
        runtime = {key.removeprefix("runtime."): value for key, value in params.items()}
        run = record(f"{name}-{number}", ttft_s=ttft_s, tpot_s=tpot_s, chip=chip, kind=kind, runtime=runtime)
        run.save(folder / f"trials/{number:03}.json")
        values = {goal.metric: float(run.summary[goal.metric] or 0) for goal in goals}
        trials.append(TrialSummary(number, "COMPLETE", source, params, values, record=f"trials/{number:03}.json"))
    order = ranking(goals, trials, DEFAULT)
    for place, trial in enumerate(order, start=1):
        trial.rank = place
    summary = StudySummary(
        study=name,
        status="finished",
        created="2026-11-29T11:00:00+00:00",
        updated="2026-11-29T12:00:00+00:00",
        kind=kind,
        chip=chip,
        device=f"Example {chip}",
        model="smollm2",
        engine="native",
        workload="chat",
        objective="balanced",
        goals=[{"metric": goal.metric, "direction": goal.direction} for goal in goals],
        slo={},
        space=SPACE,
        space_hash="abc",
        sampler="grid",
        seed=0,
        impossible=[],
        planned=len(points),
        done=len(points),
        trials=trials,
        baseline=0,
        winner=kept if kept is not None else order[0].number if order else None,
        rule=rule_of(goals),
        closing=None if kept is None else _closing(folder, order[0], trials[kept]),
        profile=f"profiles/{chip}/smollm2.yaml",
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_summary(summary, folder)
    return folder


def _closing(folder: Path, first: TrialSummary, default: TrialSummary) -> dict[str, Any]:
    measurements = []
    for trial in (default, first):
        run = record(f"closing-{trial.number}", ttft_s=0.123, tpot_s=0.01)
        run.save(folder / f"closing/{trial.number:03}-1.json")
        measurements.append({"number": trial.number, "values": {}, "record": f"closing/{trial.number:03}-1.json"})
    verdict = f"trial {first.number} looked best but does not beat the default beyond noise"
    return {"default": 0, "winner": first.number, "accepted": False, "measurements": measurements, "verdict": verdict}
