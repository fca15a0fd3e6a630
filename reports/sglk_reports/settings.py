"""Parameters and values in words, the same in the terminal, in Markdown, on the page and in the plots."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from sglk_reports.metrics import shown

ABSENT = "-"


def knob_name(key: str) -> str:
    """Return a parameter's short name: `runtime.page_size` is `page_size`."""
    return key.removeprefix("runtime.")


def value_text(value: Any) -> str:
    """Return a parameter's value as it is written in YAML; what is not known is ABSENT."""
    if value is None:
        return "null"
    if isinstance(value, float) and pd.isna(value):
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_text(row: "pd.Series[Any]", knobs: Sequence[str]) -> str:
    """Return `name=value` for all `knobs` of one row."""
    known = [(knob, row[knob]) for knob in knobs if knob in row.index]
    return ", ".join(f"{knob_name(knob)}={value_text(value)}" for knob, value in known)


def figure_text(metric: str, value: float) -> str:
    """Return a figure in its unit with about four significant digits."""
    if pd.isna(value):
        return ABSENT
    number = shown(metric, value)
    magnitude = abs(number)
    if magnitude >= 1000:
        return f"{number:,.0f}"
    return f"{number:.{1 if magnitude >= 100 else 2 if magnitude >= 1 else 3}f}"


def change_text(percent: float) -> str:
    """Return a signed percentage; the sign is that of the figure, not of its worth."""
    return ABSENT if pd.isna(percent) else f"{percent:+.1f} %"
