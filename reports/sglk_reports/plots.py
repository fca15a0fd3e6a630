"""Charts of one ranking, as plotly figures."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sglk.bench.record import Record
from sglk_reports.effects import effects
from sglk_reports.metrics import DEFAULT_LATENCY, DEFAULT_METRIC, heading, is_latency, shown, title
from sglk_reports.rankings import Ranking
from sglk_reports.settings import figure_text, knob_name, setting_text, value_text
from sglk_reports.study import Goal

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
OTHER, FRONT, BEST, DEFAULT = "#9aa5b1", "#2f6fed", "#0f9d68", "#d9822b"

_LAYOUT = go.Layout(
    font={"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": INK},
    paper_bgcolor="white",
    plot_bgcolor="white",
    margin={"l": 64, "r": 24, "t": 28, "b": 56},
    height=420,
    legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    hoverlabel={"bgcolor": "white", "bordercolor": GRID, "font": {"color": INK, "size": 12}, "align": "left"},
)
_AXIS = {"gridcolor": GRID, "linecolor": MUTED, "zeroline": False, "ticks": "outside", "tickcolor": GRID}


def _escape(text: str) -> str:
    """Plotly reads a little HTML in every text; what users named must not become a tag."""
    return html.escape(text, quote=False)


def axes(goals: Sequence[Goal], figures: Sequence[str]) -> tuple[str, str] | None:
    """Return the latency and the throughput to set against each other: the goals' own where they have them."""
    latency = next((goal.metric for goal in goals if is_latency(goal.metric)), DEFAULT_LATENCY)
    rate = next((goal.metric for goal in goals if not is_latency(goal.metric)), DEFAULT_METRIC)
    return (latency, rate) if latency in figures and rate in figures else None


def pareto_front(points: pd.DataFrame, latency: str, rate: str) -> pd.DataFrame:
    """Return the rows that no other one beats in `rate` (more) or `latency` (less) without losing the other one."""
    kept = [not _beaten(row[latency], row[rate], points[latency], points[rate]) for _, row in points.iterrows()]
    return points[kept].sort_values([latency, rate], kind="stable")


def _beaten(latency: float, rate: float, latencies: "pd.Series[float]", rates: "pd.Series[float]") -> bool:
    better = (latencies < latency) | (rates > rate)
    return bool(((latencies <= latency) & (rates >= rate) & better).any())


def pareto(ranking: Ranking) -> go.Figure | None:
    """Draw throughput over latency with the front marked; None without two settings that have both figures."""
    chosen = axes(ranking.goals, list(ranking.rows.columns))
    if chosen is None:
        return None
    latency, rate = chosen
    points = ranking.ranked[ranking.ranked[[latency, rate]].notna().all(axis=1)]
    if len(points) < 2:
        return None
    front = pareto_front(points, latency, rate)
    figure = go.Figure(layout=_LAYOUT)
    rest = points.drop(front.index)
    figure.add_trace(_points(ranking, rest, latency, rate, "other settings", {"color": OTHER, "size": 9}))
    marker = {"color": FRONT, "size": 10}
    line = _points(ranking, front, latency, rate, "Pareto front", marker)
    figure.add_trace(line.update(mode="lines+markers", line={"color": FRONT, "width": 2, "shape": "hv"}))
    for name, rows, color, symbol in (
        ("default", points[points["is_default"]], DEFAULT, "diamond"),
        ("winner", points[points["is_winner"]], BEST, "star"),
    ):
        style = {"color": color, "size": 15, "symbol": symbol, "line": {"color": "white", "width": 1.5}}
        if len(rows):
            figure.add_trace(_points(ranking, rows, latency, rate, name, style))
    figure.update_xaxes(title=heading(latency), **_AXIS)
    figure.update_yaxes(title=heading(rate), **_AXIS)
    return figure


def effect_plot(ranking: Ranking, goal: Goal) -> go.Figure | None:
    """Draw every setting's figure per value of each knob, with the medians; None if no knob has two values."""
    table = effects(ranking, goal)
    table = table[table["settings"] > 0]
    knobs = [knob for knob, group in table.groupby("knob", sort=False) if len(group) > 1]
    if not knobs:
        return None
    columns = min(len(knobs), 4)
    count = -(-len(knobs) // columns)
    figure = make_subplots(
        rows=count,
        cols=columns,
        subplot_titles=[_escape(knob_name(str(knob))) for knob in knobs],
        shared_yaxes=True,
        horizontal_spacing=0.04,
        vertical_spacing=0.28 / count,
    )
    figure.update_layout(_LAYOUT, height=100 + 250 * count, showlegend=False)
    for index, knob in enumerate(knobs):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        mine = table[table["knob"] == knob]
        labels = [_label(value) for value in mine["value"]]
        rows = ranking.ranked[ranking.ranked[knob].isin(list(mine["value"]))]
        figure.add_trace(_strip(ranking, rows, str(knob), goal), **place)
        figure.add_trace(_medians(labels, mine["median"], goal), **place)
        figure.update_xaxes(type="category", categoryorder="array", categoryarray=labels, **place)
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**_AXIS)
    figure.update_yaxes(title=heading(goal.metric), col=1)
    return figure


def distributions(records: Mapping[str, Sequence[Record]]) -> go.Figure | None:
    """Draw which share of the requests was done within a time, per name in `records`; None without raw requests.

    Left the time to the first token, right the time to the last one.
    """
    figure = make_subplots(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=["first token", "whole answer"]
    )
    figure.update_layout(_LAYOUT, margin_t=64, legend_y=1.1)
    longest = [0.0, 0.0]
    for (name, runs), color in zip(records.items(), (BEST, DEFAULT, FRONT, MUTED), strict=False):
        for column, field in enumerate(("ttft_s", "e2e_s"), start=1):
            times = _times(runs, field)
            longest[column - 1] = max(longest[column - 1], *times, 0.0)
            trace = _steps(times, _escape(name), color, "ms" if field == "ttft_s" else "s")
            figure.add_trace(trace.update(showlegend=column == 1), row=1, col=column)
    if not any(longest):
        return None
    figure.update_xaxes(**_AXIS)
    figure.update_xaxes(title="TTFT (ms)", range=[0, longest[0] * 1040], col=1)
    figure.update_xaxes(title="E2E (s)", range=[0, longest[1] * 1.04], col=2)
    figure.update_yaxes(range=[0, 102], **_AXIS)
    figure.update_yaxes(title="requests done (%)", col=1)
    return figure


def _label(value: Any) -> str:
    return _escape(value_text(value))


def _hover(ranking: Ranking, row: "pd.Series[Any]", figures: Sequence[str]) -> str:
    lines = [f"<b>{_escape(str(row['source']))} {_escape(str(row['id']))}</b>"]
    lines += [_escape(part) for part in setting_text(row, ranking.knobs).split(", ")]
    lines += [f"{_escape(title(name))}: {figure_text(name, row[name])}" for name in dict.fromkeys(figures)]
    return "<br>".join(lines)


def _points(ranking: Ranking, rows: pd.DataFrame, x: str, y: str, name: str, marker: dict[str, Any]) -> go.Scatter:
    return go.Scatter(
        x=[shown(x, value) for value in rows[x]],
        y=[shown(y, value) for value in rows[y]],
        mode="markers",
        name=name,
        marker=marker,
        hovertext=[_hover(ranking, row, (x, y)) for _, row in rows.iterrows()],
        hoverinfo="text",
    )


def _strip(ranking: Ranking, rows: pd.DataFrame, knob: str, goal: Goal) -> go.Scatter:
    return go.Scatter(
        x=[_label(value) for value in rows[knob]],
        y=[shown(goal.metric, value) for value in rows[goal.metric]],
        mode="markers",
        marker={"color": OTHER, "size": 7, "opacity": 0.6},
        hovertext=[_hover(ranking, row, (goal.metric,)) for _, row in rows.iterrows()],
        hoverinfo="text",
    )


def _medians(labels: Sequence[str], medians: "pd.Series[Any]", goal: Goal) -> go.Scatter:
    texts = [f"median {figure_text(goal.metric, value)}" for value in medians]
    return go.Scatter(
        x=list(labels),
        y=[shown(goal.metric, value) for value in medians],
        mode="lines+markers",
        line={"color": FRONT, "width": 2},
        marker={"color": FRONT, "size": 9, "symbol": "line-ew", "line": {"color": FRONT, "width": 3}},
        hovertext=texts,
        hoverinfo="text",
    )


def _times(runs: Sequence[Record], field: str) -> list[float]:
    requests = [request for run in runs for request in run.requests if request.phase == "measured" and request.ok]
    return sorted(value for request in requests if (value := getattr(request, field)) is not None)


def _steps(times: Sequence[float], name: str, color: str, unit: str) -> go.Scatter:
    scale = 1000.0 if unit == "ms" else 1.0
    return go.Scatter(
        x=[time * scale for time in (*times[:1], *times)],
        y=[index / len(times) * 100 for index in range(len(times) + 1)] if times else [],
        mode="lines",
        name=name,
        legendgroup=name,
        line={"color": color, "width": 2.5, "shape": "hv"},
        hovertemplate=f"{name}: %{{y:.0f}} % within %{{x:.3~g}} {unit}<extra></extra>",
    )
