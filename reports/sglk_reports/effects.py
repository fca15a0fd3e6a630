"""What each parameter does on its own: the median figure per value, over everything else that was tried."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from sglk_reports.rankings import Ranking
from sglk_reports.study import Goal

COLUMNS = ("knob", "value", "settings", "failed", "median", "best")


def effects(ranking: Ranking, goal: Goal) -> pd.DataFrame:
    """Return one row per knob and value: `settings` ranked with it, `failed` ones, `median` and `best` of the goal.

    Only knobs with two values or more are listed. Medians compare like with like on a full grid; with a study sampler
    that prefers good regions they lean towards it.
    """
    rows = [row for knob in ranking.knobs for row in _effect(ranking.rows, knob, goal)]
    # As they are: pandas would make numbers beside a null floats, and the null a gap.
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def values_in_order(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values, numbers by size before words by alphabet, among which null is one."""
    return sorted(dict.fromkeys(values), key=_order)


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, str(value)


def _effect(rows: pd.DataFrame, knob: str, goal: Goal) -> list[tuple[Any, ...]]:
    if knob not in rows.columns:
        return []
    # Null is a value, of which NaN, that a row has none, differs.
    values = values_in_order([value for value in rows[knob] if value is None or pd.notna(value)])
    if len(values) < 2:
        return []
    found = []
    for value in values:
        mine = rows[[each is value if value is None else each == value for each in rows[knob]]]
        figures = mine.loc[mine["rank"].notna(), goal.metric]
        failed = int((mine["state"].isin(["FAIL", "INVALID"])).sum())
        best = figures.max() if goal.direction == "maximize" else figures.min()
        found.append((knob, value, len(figures), failed, figures.median(), best))
    return found
