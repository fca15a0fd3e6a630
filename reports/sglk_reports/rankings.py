"""Rankings: the settings of one study, or of comparable runs, best first, with those that failed at the end.

A ranking never holds measured and simulated figures together, nor figures of different traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sglk.bench.record import Record
from sglk_reports.frames import MEASURED_STATE, parameters
from sglk_reports.metrics import DEFAULT_METRIC, title
from sglk_reports.sources import Sources, StudySource
from sglk_reports.study import Goal


@dataclass
class Ranking:
    """Settings in order.

    `rows` carries the columns of the tidy frame, and with them `rank` (null = not ranked), `is_default`, `is_winner`
    and per goal `delta:METRIC`, the change against the default in percent (null = no default to compare with).
    """

    name: str
    kind: str
    goals: tuple[Goal, ...]
    knobs: list[str]
    """Parameters that differ between the rows."""
    rows: pd.DataFrame
    rule: str
    """How the order came about, in words."""
    records: dict[str, Record]
    """Raw records by the rows' `id`, where there are any."""
    study: StudySource | None = None

    @property
    def ranked(self) -> pd.DataFrame:
        """The rows that have a rank."""
        return self.rows[self.rows["rank"].notna()]

    @property
    def winner(self) -> pd.Series | None:
        """The row that the study keeps, which after its closing comparison may be the default; else the first one."""
        rows = self.rows[self.rows["is_winner"]]
        return None if rows.empty else rows.iloc[0]

    @property
    def default(self) -> pd.Series | None:
        """The row of the default configuration, if it was measured."""
        rows = self.ranked[self.ranked["is_default"]]
        return None if rows.empty else rows.iloc[0]


def traffic(goals: Sequence[Goal]) -> list[str]:
    """Return the columns that must agree before figures may be compared; goodput also depends on its SLO."""
    columns = ["kind", "model", "workload_hash", "prefix_cache"]
    return [*columns, "slo"] if any(item.metric.startswith("goodput") for item in goals) else columns


def rankings(frame: pd.DataFrame, sources: Sources, wanted: Sequence[Goal] = ()) -> list[Ranking]:
    """Return one ranking per study and kind, and one per set of comparable runs; `wanted` replaces the goals."""
    found = []
    for source in sources.studies:
        rows = frame[(frame["role"] == "trial") & (frame["study"] == source.study.study)]
        for kind, group in rows.groupby("kind", sort=False, dropna=False):
            found.append(_of_study(source, str(kind), group, tuple(wanted)))
    goals = tuple(wanted) or (Goal(DEFAULT_METRIC, "maximize"),)
    runs = frame[frame["role"] == "run"]
    keys = [*traffic(goals), "chip", "device", "engine", "workload"]
    for _, group in runs.groupby(keys, sort=False, dropna=False):
        found.append(_of_runs(group, goals, {run.record.id: run.record for run in sources.runs}))
    return found


def _of_study(source: StudySource, kind: str, rows: pd.DataFrame, wanted: tuple[Goal, ...]) -> Ranking:
    study = source.study
    goals = wanted or tuple(study.goals)
    rows = rows.assign(is_default=rows["id"] == str(study.baseline))
    by_rule = not wanted and bool(rows.loc[_comparable(rows, goals), "study_rank"].notna().all())
    order = Goal("study_rank", "minimize") if by_rule else goals[0]
    rule = study.rule if by_rule and study.rule else _words(goals[0])
    knobs = list(study.space) or _varying(rows)
    records = {str(number): record for number, record in source.records.items() if record.kind == kind}
    table = _ranked(rows, goals, order, str(study.winner) if by_rule else None)
    return Ranking(study.study, kind, goals, knobs, table, rule, records, source)


def _of_runs(rows: pd.DataFrame, goals: tuple[Goal, ...], records: dict[str, Record]) -> Ranking:
    first = rows.iloc[0]
    parts = [str(first[name]) for name in ("chip", "model", "engine", "workload") if pd.notna(first[name])]
    ranked = _ranked(rows.assign(is_default=False), goals, goals[0])
    mine = {name: records[name] for name in ranked["id"]}
    name = f"runs: {' · '.join(parts)}"
    return Ranking(name, str(first["kind"]), goals, _varying(rows), ranked, _words(goals[0]), mine)


def _words(order: Goal) -> str:
    return f"{'highest' if order.direction == 'maximize' else 'lowest'} {title(order.metric)} first"


def _ranked(rows: pd.DataFrame, goals: tuple[Goal, ...], order: Goal, winner: str | None = None) -> pd.DataFrame:
    missing = [item.metric for item in goals if item.metric not in rows.columns]
    rows = rows.assign(**dict.fromkeys(missing, float("nan")))
    comparable = _comparable(rows, goals)
    # A stable sort: equals stay in the order in which they were measured.
    done = rows[comparable].sort_values(order.metric, ascending=order.direction == "minimize", kind="stable")
    rest = rows[~comparable]
    table = pd.concat([done, rest], ignore_index=True)
    table.insert(0, "rank", pd.Series([*range(1, len(done) + 1), *[None] * len(rest)], dtype="Int64"))
    kept = table["rank"].notna() & (table["id"] == winner)
    table["is_winner"] = kept if kept.any() else (table["rank"] == 1).fillna(False).astype(bool)
    default = done[done["is_default"]]
    for item in goals:
        base = float(default.iloc[0][item.metric]) if len(default) else float("nan")
        table[f"delta:{item.metric}"] = (table[item.metric] / base - 1) * 100 if base else float("nan")
    return table


def _comparable(rows: pd.DataFrame, goals: tuple[Goal, ...]) -> pd.Series:
    known = rows.reindex(columns=[item.metric for item in goals]).notna().all(axis=1)
    return (rows["state"] == MEASURED_STATE) & known


def _varying(rows: pd.DataFrame) -> list[str]:
    def values(name: str) -> pd.Series:
        # Records written before these were noted supposed something too: their silence is not another value.
        return rows[name].dropna() if name.startswith(("chip.", "simulate.")) else rows[name]

    return [name for name in parameters(rows) if values(name).astype(str).nunique() > 1]
