"""The tables of a report as text, ready for the terminal, for Markdown and for the page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from sglk_reports.comparison import Comparison
from sglk_reports.effects import effects
from sglk_reports.metrics import heading, title
from sglk_reports.rankings import Ranking
from sglk_reports.settings import ABSENT, change_text, figure_text, knob_name, setting_text, value_text
from sglk_reports.study import Goal

Mark = Literal["", "best", "default", "failed"]

CONTEXT = ("output_throughput", "ttft_s_p99", "tpot_s_p50", "peak_memory_bytes")
"""Figures shown beside the goals, to see what a goal was bought with."""


@dataclass
class TextTable:
    """Cells as they are read; `numeric` columns align to the right, `marks` say what kind of row it is."""

    title: str
    headers: list[str]
    rows: list[list[str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    numeric: frozenset[int] = frozenset()

    def add(self, cells: Sequence[str], mark: Mark = "") -> None:
        """Append one row."""
        self.rows.append(list(cells))
        self.marks.append(mark)


def ranking_table(ranking: Ranking) -> TextTable:
    """Return every setting with its rank, figures, change against the default, and what became of it."""
    goals = [goal.metric for goal in ranking.goals]
    context = [name for name in CONTEXT if name not in goals and _known(ranking.rows, name)]
    has_default = ranking.default is not None
    headers = ["rank", "run" if ranking.study is None else "trial", *map(knob_name, ranking.knobs)]
    start = len(headers)
    for name in goals:
        headers += [heading(name), "vs default"] if has_default else [heading(name)]
    headers += [heading(name) for name in context]
    table = TextTable(ranking.name, [*headers, "note"], numeric=frozenset({0, *range(start, len(headers))}))
    for _, row in ranking.rows.iterrows():
        cells = [ABSENT if pd.isna(row["rank"]) else str(row["rank"]), str(row["id"]) or ABSENT]
        cells += [value_text(row.get(knob, ABSENT)) for knob in ranking.knobs]
        for name in goals:
            cells.append(figure_text(name, row[name]))
            if has_default:
                cells.append(change_text(row[f"delta:{name}"]))
        cells += [figure_text(name, row[name]) for name in context]
        table.add([*cells, _note(row)], _mark(row))
    return table


def effect_table(ranking: Ranking, goal: Goal) -> TextTable:
    """Return the median of one goal per value of each knob."""
    name = heading(goal.metric)
    headers = ["parameter", "value", "settings", "failed", f"median {name}", f"best {name}"]
    table = TextTable(f"Effect of each parameter on {title(goal.metric)}", headers, numeric=frozenset(range(2, 6)))
    for row in effects(ranking, goal).itertuples():
        figures = [figure_text(goal.metric, float(value)) for value in (row.median, row.best)]  # type: ignore[arg-type]
        table.add([knob_name(str(row.knob)), value_text(row.value), str(row.settings), str(row.failed), *figures])
    return table


def comparison_table(comparison: Comparison, knobs: Sequence[str]) -> TextTable:
    """Return the best setting of each chip, one block of rows per kind of traffic."""
    first = comparison.goals[0]
    headers = ["model", "workload", "kind", "chip", "device", "engine", *map(heading, _metrics(comparison)), "of best"]
    start = len(headers) - 1 - len(_metrics(comparison))
    numeric = frozenset(range(start, len(headers)))
    table = TextTable("Chips under the same traffic", [*headers, "setting"], numeric=numeric)
    for _, row in comparison.rows.iterrows():
        workload = f"{row['workload']} ({str(row['workload_hash'])[:8]})"
        cells = [_fact(row["model"]), workload, str(row["kind"])]
        cells += [_fact(row[name]) for name in ("chip", "device", "engine")]
        cells += [figure_text(name, row[name]) for name in _metrics(comparison)]
        share = float(row[f"share:{first.metric}"])
        cells += [f"{share:.0f} %", setting_text(row, [knob for knob in knobs if pd.notna(row.get(knob))])]
        table.add(cells, "best" if share == 100 else "")
    return table


def _metrics(comparison: Comparison) -> list[str]:
    names = [goal.metric for goal in comparison.goals]
    return names + [name for name in CONTEXT if name not in names and _known(comparison.rows, name)]


def _fact(value: Any) -> str:
    return ABSENT if pd.isna(value) else str(value)


def _known(rows: pd.DataFrame, name: str) -> bool:
    return name in rows.columns and bool(rows[name].notna().any())


def _note(row: "pd.Series[Any]") -> str:
    words = ["winner"] if row["is_winner"] else []
    words += ["default"] if row["is_default"] else []
    words += [str(row["source"])] if row["source"] in ("carried", "control", "retry") else []
    if row["state"] != "COMPLETE":
        words.append(f"{row['state']}: {row['reason']}" if row["reason"] else str(row["state"]))
        words += [f"log {row['log']}"] if row["state"] == "FAIL" and pd.notna(row["log"]) else []
    elif pd.isna(row["rank"]):
        words.append("no figure for a goal")
    return ", ".join(words)


def _mark(row: "pd.Series[Any]") -> Mark:
    if row["state"] in ("FAIL", "INVALID", "PRUNED"):
        return "failed"
    if row["is_winner"]:
        return "best"
    return "default" if row["is_default"] else ""
