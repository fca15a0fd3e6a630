"""A report as plain data, for `--json`."""

from typing import Any

import pandas as pd

from sglk_reports.rankings import Ranking
from sglk_reports.report import Report


def to_document(report: Report) -> dict[str, Any]:
    """Return rankings, chips and what was left out; figures in SI units, what is unknown is null."""
    return {
        "rankings": [_ranking(ranking) for ranking in report.rankings],
        "chips": {
            "goals": [str(goal) for goal in report.chips.goals],
            "rows": _rows(report.chips.rows),
            "notes": report.chips.notes,
        },
        "skipped": report.skipped,
    }


def _ranking(ranking: Ranking) -> dict[str, Any]:
    return {
        "name": ranking.name,
        "kind": ranking.kind,
        "goals": [str(goal) for goal in ranking.goals],
        "rule": ranking.rule,
        "knobs": ranking.knobs,
        "rows": _rows(ranking.rows),
    }


def _rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _plain(value: Any) -> Any:
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
