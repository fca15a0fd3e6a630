"""One report, put together: what the terminal, the Markdown file and the page all show."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sglk_reports.comparison import Comparison, compare_chips
from sglk_reports.frames import metrics, tidy
from sglk_reports.metrics import DEFAULT_METRIC, goal
from sglk_reports.rankings import Ranking, rankings
from sglk_reports.section import Section, section
from sglk_reports.sources import Sources
from sglk_reports.study import Goal
from sglk_reports.tables import TextTable, comparison_table


@dataclass
class Report:
    """All rankings, and the chips side by side."""

    name: str
    """Stem of the files that carry it."""
    subtitle: str
    frame: pd.DataFrame
    rankings: list[Ranking]
    sections: list[Section]
    chips: Comparison
    chip_table: TextTable
    skipped: list[str]

    @property
    def kinds(self) -> list[str]:
        """`measured`, `simulated` or both, as far as the rankings have them."""
        return sorted({ranking.kind for ranking in self.rankings})


def build_report(sources: Sources, wanted: Sequence[str] = ()) -> Report:
    """Read everything once; `wanted` are goals as typed for `--metric`. Raises ConfigError for an unknown metric."""
    frame = tidy(sources)
    goals = [goal(text, metrics(frame)) for text in wanted]
    ranked = rankings(frame, sources, goals)
    chips = compare_chips(frame, goals or _common_goal(ranked))
    names = [source.study.study for source in sources.studies] + [run.path.stem for run in sources.runs]
    knobs = list(dict.fromkeys(knob for ranking in ranked for knob in ranking.knobs))
    return Report(
        name=names[0] if len(names) == 1 else "report",
        subtitle=_count(len(sources.studies), "study", "studies") + ", " + _count(len(sources.runs), "run", "runs"),
        frame=frame,
        rankings=ranked,
        sections=[section(ranking) for ranking in ranked],
        chips=chips,
        chip_table=comparison_table(chips, knobs),
        skipped=sources.skipped,
    )


def _common_goal(ranked: Sequence[Ranking]) -> list[Goal]:
    """Return the goals that all rankings share, or output throughput where they differ."""
    distinct = {ranking.goals for ranking in ranked}
    return list(distinct.pop()) if len(distinct) == 1 else [Goal(DEFAULT_METRIC, "maximize")]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
