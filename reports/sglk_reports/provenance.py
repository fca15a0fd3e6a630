"""Where the figures of a ranking come from: machine, versions, traffic, search."""

from collections import Counter
from collections.abc import Iterable

from sglk.bench.record import Record
from sglk_reports.rankings import Ranking

Facts = list[tuple[str, str]]


def provenance(ranking: Ranking) -> Facts:
    """Return label and text of all that a reader needs to judge the figures; absent facts are left out."""
    records = list(ranking.records.values())
    facts = [
        ("chip", _distinct(ranking.rows["chip"])),
        ("device", _distinct(ranking.rows["device"])),
        ("model", _distinct(ranking.rows["model"])),
        ("engine", _distinct(ranking.rows["engine"])),
        ("machine", _distinct(map(_machine, records))),
        ("sglk", _distinct(map(_tool, records))),
        ("versions", _distinct(map(_versions, records))),
        ("workload", _distinct(map(_workload, records)) or _distinct(ranking.rows["workload"])),
        ("arrivals", _distinct(map(_arrivals, records))),
        ("requests", _distinct(map(_requests, records))),
        ("SLO", _distinct(ranking.rows["slo"])),
        ("measured from" if ranking.kind == "measured" else "run from", _period(records)),
        *_search(ranking),
    ]
    return [(label, text) for label, text in facts if text]


def warnings(ranking: Ranking) -> list[str]:
    """Return what the records warn of, each once with its count, and what makes the ranking itself doubtful."""
    records = list(ranking.records.values())
    counted = Counter(warning for record in records for warning in record.warnings)
    found = [f"{text} ({number} of {len(records)} runs)" for text, number in counted.items()]
    for label, describe in (("machines", _machine), ("versions of sglk", _tool), ("software versions", _versions)):
        distinct = {describe(record) for record in records}
        if len(distinct) > 1:
            found.append(f"the figures come from {len(distinct)} different {label}")
    study = ranking.study.study if ranking.study else None
    if study and study.status not in ("finished", "failed"):
        found.append(f"the study is {study.status}: {_states(ranking)}")
    return found


def _distinct(values: Iterable[object]) -> str:
    words = (str(value) for value in values if isinstance(value, str) and value)
    return "; ".join(dict.fromkeys(words))


def _machine(record: Record) -> str:
    machine = record.machine
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:.0f} GiB"
    return f"{machine.cpu}, {machine.cores} cores{memory}, {machine.os}"


def _tool(record: Record) -> str:
    return record.tool.version + (f" ({record.tool.commit[:12]})" if record.tool.commit else "")


def _versions(record: Record) -> str:
    versions = {**record.versions, **record.server.versions}
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _workload(record: Record) -> str:
    workload = record.workload
    shape = f"{workload.get('input_len', '?')} tokens in, {workload.get('output_len', '?')} out"
    if file := workload.get("file"):
        shape = f"lengths of {file}"
    return (
        f"{workload.get('name', '?')}: {shape}, seed {workload.get('seed', '?')}, hash {_short(workload.get('hash'))}"
    )


def _arrivals(record: Record) -> str:
    workload = record.workload
    in_flight, arrival = workload.get("concurrency"), workload.get("arrival")
    if arrival not in ("poisson", "trace"):
        return f"closed loop, {in_flight} in flight"
    pace = f"Poisson, {workload.get('rate')} requests/s"
    if arrival == "trace":
        pace = f"as the trace says, at {workload.get('time_scale', 1):g} times its seconds"
    return f"open loop, {pace}" + (f", at most {in_flight} in flight" if in_flight else "")


def _requests(record: Record) -> str:
    cache = {"flush": "flushed before", "salt": "kept cold by salted prompts", "keep": "kept from the run before"}
    counts = record.counts
    return (
        f"{counts.requests} measured after {counts.warmup} for warm-up, over {record.load.api}, "
        f"prefix cache {cache.get(record.load.cache, record.load.cache)}"
    )


def _period(records: list[Record]) -> str:
    days = sorted(record.created for record in records)
    return "" if not days else f"{_minute(days[0])} to {_minute(days[-1])} UTC"


def _minute(stamp: str) -> str:
    return stamp[:16].replace("T", " ")


def _search(ranking: Ranking) -> Facts:
    if ranking.study is None:
        return []
    study = ranking.study.study
    goals = ", ".join(map(str, study.goals))
    return [
        ("objective", f"{study.objective} ({goals})"),
        ("study sampler", f"{study.sampler}, seed {study.seed}"),
        ("trials", _states(ranking)),
        ("profile", study.profile or ""),
    ]


def _states(ranking: Ranking) -> str:
    counted = Counter(ranking.rows["state"])
    return ", ".join(f"{number} {state.lower()}" for state, number in counted.items())


def _short(text: object) -> str:
    return str(text)[:12] if text else "?"
