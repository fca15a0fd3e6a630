"""The best setting of each chip under the same traffic, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from sglk_reports.frames import MEASURED_STATE
from sglk_reports.rankings import traffic
from sglk_reports.study import Goal

_WHO = ["chip", "device", "engine"]


@dataclass
class Comparison:
    """Chips that met the same traffic.

    `rows` carries the best row per chip, device and engine, and `share:METRIC`, its first goal relative to the best
    chip's in percent. Rows of one `group` number compare with each other and with nothing else.
    """

    goals: tuple[Goal, ...]
    rows: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    """What looks alike but was not compared, and why."""


def compare_chips(frame: pd.DataFrame, goals: Sequence[Goal]) -> Comparison:
    """Return the best row per chip for every kind of traffic that two or more chips met."""
    first = goals[0]
    rows = frame[(frame["state"] == MEASURED_STATE) & frame["role"].isin(["trial", "run"])]
    rows = rows[rows[first.metric].notna()] if first.metric in rows.columns else rows.head(0)
    groups = []
    for number, (_, group) in enumerate(rows.groupby(traffic(goals), sort=False, dropna=False), start=1):
        best = _best_per_chip(group, first)
        if best["chip"].nunique() > 1:
            groups.append(best.assign(group=number))
    table = pd.concat(groups, ignore_index=True) if groups else rows.head(0).assign(group=0, **{_share(first): 0.0})
    return Comparison(tuple(goals), table, _notes(rows, goals))


def _best_per_chip(rows: pd.DataFrame, first: Goal) -> pd.DataFrame:
    lower = first.direction == "minimize"
    rows = rows.sort_values(first.metric, ascending=lower, kind="stable")
    best = rows.drop_duplicates(_WHO)
    return best.assign(**{_share(first): best[first.metric] / best[first.metric].iloc[0] * 100})


def _share(first: Goal) -> str:
    return f"share:{first.metric}"


def _notes(rows: pd.DataFrame, goals: Sequence[Goal]) -> list[str]:
    """Name the same model and workload on different chips where the traffic or the kind differs."""
    notes = []
    for (model, workload), group in rows.groupby(["model", "workload"], sort=False, dropna=False):
        if group["chip"].nunique() < 2:
            continue
        reasons = [name for name in traffic(goals) if group[name].nunique(dropna=False) > 1]
        if reasons:
            chips = ", ".join(sorted({str(chip) for chip in group["chip"]}))
            words = ", ".join(_REASONS[name] for name in reasons)
            notes.append(f"{model} with workload {workload} on {chips}: not all rows are comparable, {words}")
    return notes


_REASONS = {
    "kind": "some figures are measured and some simulated",
    "workload_hash": "workloads of the same name differ in their settings (other hash)",
    "prefix_cache": "some runs kept the prefix cache of the run before",
    "slo": "goodput was counted under different limits",
}
