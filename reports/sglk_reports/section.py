"""One ranking made ready to read: headline, figures, tables, charts and where it all comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from sglk.bench.record import Record
from sglk_reports.metrics import title, unit
from sglk_reports.plots import axes, distributions, effect_plot, pareto
from sglk_reports.provenance import Facts, provenance, warnings
from sglk_reports.rankings import Ranking
from sglk_reports.settings import ABSENT, change_text, figure_text, knob_name, setting_text, value_text
from sglk_reports.study import Goal
from sglk_reports.tables import TextTable, effect_table, ranking_table

MOST_CURVES = 3
"""Runs drawn side by side where there is no default to compare with."""


@dataclass
class Chart:
    """One figure, its heading and how to read it."""

    heading: str
    caption: str
    figure: go.Figure


@dataclass
class Tile:
    """One goal of the best setting, large."""

    label: str
    value: str
    unit: str
    change: str
    """Against the default; empty without one."""
    better: bool
    """Whether the change is for the better; False for none."""


@dataclass
class Choice:
    """One parameter of the best setting."""

    name: str
    value: str
    default: str
    """What the default configuration has; empty if the same or unknown."""


@dataclass
class Section:
    """One ranking with all that belongs to it."""

    name: str
    kind: str
    headline: str
    tiles: list[Tile]
    choices: list[Choice]
    remarks: list[str]
    rule: str
    table: TextTable
    effects: list[TextTable]
    charts: list[Chart]
    provenance: Facts
    warnings: list[str]


def section(ranking: Ranking) -> Section:
    """Put everything about one ranking together."""
    closing = ranking.study.study.closing if ranking.study else None
    tables = [effect_table(ranking, goal) for goal in ranking.goals]
    return Section(
        name=ranking.name,
        kind=ranking.kind,
        headline=headline(ranking),
        tiles=[] if ranking.winner is None else [_tile(ranking, goal) for goal in ranking.goals],
        choices=_choices(ranking),
        remarks=[closing.verdict] if closing and closing.verdict else [],
        rule=ranking.rule,
        table=ranking_table(ranking),
        effects=[table for table in tables if table.rows],
        charts=_charts(ranking),
        provenance=provenance(ranking),
        warnings=warnings(ranking),
    )


def headline(ranking: Ranking) -> str:
    """Return the result in one sentence."""
    winner, default, count = ranking.winner, ranking.default, len(ranking.ranked)
    if winner is None:
        return f"No setting could be ranked; {len(ranking.rows)} were tried."
    figures = " and ".join(_figure(ranking, goal) for goal in ranking.goals)
    if default is not None and winner["id"] == default["id"]:
        place = "is the best" if winner["rank"] == 1 else "stays the choice"
        return f"The default configuration {place} of {count} settings: {figures}."
    setting = setting_text(winner, ranking.knobs)
    if count == 1 or not setting:
        return f"{figures}."
    return f"Best of {count} settings: {setting}, with {figures}."


def _figure(ranking: Ranking, goal: Goal) -> str:
    assert ranking.winner is not None
    text = f"{title(goal.metric)} {figure_text(goal.metric, ranking.winner[goal.metric])} {unit(goal.metric)}".rstrip()
    change = _change(ranking, goal)
    return f"{text} ({change} against the default)" if change else text


def _change(ranking: Ranking, goal: Goal) -> str:
    winner, default = ranking.winner, ranking.default
    if winner is None or default is None or winner["id"] == default["id"]:
        return ""
    return change_text(winner[f"delta:{goal.metric}"])


def _tile(ranking: Ranking, goal: Goal) -> Tile:
    assert ranking.winner is not None
    change = float(ranking.winner[f"delta:{goal.metric}"])
    return Tile(
        label=title(goal.metric),
        value=figure_text(goal.metric, ranking.winner[goal.metric]),
        unit=unit(goal.metric),
        change=_change(ranking, goal),
        better=change > 0 if goal.direction == "maximize" else change < 0,
    )


def _choices(ranking: Ranking) -> list[Choice]:
    winner, default = ranking.winner, ranking.default
    if winner is None:
        return []
    choices = []
    for knob in ranking.knobs:
        value = value_text(winner.get(knob, ABSENT))
        other = value if default is None else value_text(default.get(knob, ABSENT))
        choices.append(Choice(knob_name(knob), value, "" if other == value else other))
    return choices


def _charts(ranking: Ranking) -> list[Chart]:
    charts = []
    front = pareto(ranking)
    if front is not None:
        names = " over ".join(title(name) for name in reversed(axes(ranking.goals, list(ranking.rows.columns)) or ()))
        caption = "Up and to the left is better. No setting beats one on the line in both figures."
        charts.append(Chart(f"{names[:1].upper()}{names[1:]}", caption, front))
    for goal in ranking.goals:
        figure = effect_plot(ranking, goal)
        if figure is not None:
            caption = "Grey: every setting; blue: the median per value, over all that was tried with it."
            charts.append(Chart(f"What each parameter does to {title(goal.metric)}", caption, figure))
    times = distributions(_curves(ranking))
    if times is not None:
        caption = "Share of completed requests done within a time; further left is faster."
        charts.append(Chart("How long requests took", caption, times))
    return charts


def _curves(ranking: Ranking) -> dict[str, Sequence[Record]]:
    """Return the records to draw: the first and the default, as the closing comparison measured them if it did."""
    first, default = ranking.ranked.head(1), ranking.default
    if default is None:
        rows = ranking.ranked.head(MOST_CURVES)
        return {f"rank {row['rank']}": _records(ranking, str(row["id"])) for _, row in rows.iterrows()}
    trials = dict.fromkeys([str(first["id"].iloc[0]), str(default["id"])])
    labels = {name: "default" if name == str(default["id"]) else "rank 1" for name in trials}
    again = {name: _again(ranking, name) for name in trials}
    runs = again if all(again.values()) else {name: _records(ranking, name) for name in trials}
    return {f"{labels[name]}, trial {name}": runs[name] for name in trials}


def _again(ranking: Ranking, name: str) -> list[Record]:
    closing = ranking.study.closing if ranking.study else []
    return [record for number, record in closing if str(number) == name and record.kind == ranking.kind]


def _records(ranking: Ranking, name: str) -> list[Record]:
    return [ranking.records[name]] if name in ranking.records else []
