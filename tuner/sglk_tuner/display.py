"""What a person sees of a study: a bar while it runs, one line per finished trial, a table at the end."""

from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sglk.config.tune_schema import TuneConfig
from sglk_tuner.proposals import Proposal, Proposals, tried
from sglk_tuner.space import ROOT, Params, Space, needs_restart
from sglk_tuner.study import Study, study_name
from sglk_tuner.summary import StudySummary, TrialSummary

MOST_ROWS = 40
_STYLES = {"COMPLETE": "green", "FAIL": "red", "PRUNED": "yellow"}


class Display:
    """Shows a session on a console; use it as a context manager around the session."""

    def __init__(self, console: Console, proposals: Proposals, study: Study, bar: bool = True) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not (bar and console.is_terminal), transient=True)
        done = len(tried(study.trials(), study.lost()))
        self._task = self._progress.add_task("starting", total=proposals.planned, completed=done)
        self._doing = self._best = ""
        if done:
            self.note(f"study {study.name} goes on: {done} of {proposals.planned} settings are measured")

    def note(self, text: str) -> None:
        """Say one line."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def begin(self, number: int, proposal: Proposal) -> None:
        """Show the setting that is measured now."""
        self._describe(f"trial {number} ({proposal.source}): {setting(proposal.params)}")

    def end(self, trial: TrialSummary, summary: StudySummary) -> None:
        """Say what became of a trial and what is best so far."""
        what = values(trial.values) or trial.reason or ""
        style = _STYLES.get(trial.state, "white")
        took = f"{trial.duration_s:.1f} s" if trial.duration_s is not None else ""
        line = f"trial {trial.number} [{style}]{trial.state}[/] {escape(setting(trial.params))} {took} {escape(what)}"
        self._console.print(line, highlight=False, soft_wrap=True)
        best = next((other for other in summary.trials if other.rank == 1), None)
        self._best = f" · best {values(best.values)} (trial {best.number})" if best else ""
        self._progress.update(self._task, completed=summary.done)

    def again(self, params: Params, name: str) -> None:
        """Show that a setting is measured again for the closing comparison."""
        self._describe(f"closing comparison ({name.rpartition('/')[2]}): {setting(params)}")

    def requests(self, phase: str, done: int, total: int) -> None:
        """Show how far the present measurement is."""
        self._progress.update(self._task, description=escape(f"{self._doing}: {phase} {done}/{total}{self._best}"))

    def result(self, table: Table) -> None:
        """Show the table of all settings."""
        self._console.print(table)

    def _describe(self, text: str) -> None:
        self._doing = text
        self._progress.update(self._task, description=escape(text + self._best))

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def plan_text(config: TuneConfig, space: Space, proposals: Proposals) -> str:
    """Return what a study would do, for `--dry-run`."""
    name = study_name(config)
    points = [proposals.default, *proposals.waiting([], set())[1:]]
    slow = [key for key in space.candidates if needs_restart(key, config.engine.name)]
    starts = len({setting({key: point[key] for key in slow}) for point in points})
    times = f"{starts} time{'' if starts == 1 else 's'}"
    if slow and len(points) < proposals.planned:
        times = "anew where a chosen setting needs it"
    hours = proposals.planned * config.study.trial_timeout_s / 3600
    lines = [
        f"study {name} in {Path(config.study.directory) / name}",
        f"goals: {', '.join(config.objective.goals)}; workload {config.workload.name}, "
        f"{config.workload.num_requests} requests per setting",
        f"{proposals.planned} of {proposals.total} possible settings, the default among them, by "
        f"{config.search.sampler}; the engine starts {times}",
        f"at most {hours:.1f} h (study.trial_timeout_s={config.study.trial_timeout_s:g} each), and then "
        f"{2 * config.study.repeats} measurements for the closing comparison",
        *(f"  {setting(point)}{'  (default)' if point == proposals.default else ''}" for point in points[:MOST_ROWS]),
        *([f"  and {len(points) - MOST_ROWS} more"] if len(points) > MOST_ROWS else []),
    ]
    return "\n".join(lines)


def setting(params: Params) -> str:
    """Return a setting in one line, such as `chunked_prefill_size=512 schedule_policy=lpm`."""
    return " ".join(f"{key.removeprefix(ROOT)}={'null' if value is None else value}" for key, value in params.items())


def values(figures: dict[str, float]) -> str:
    """Return figures in one line, such as `output_throughput=123.4`."""
    return " ".join(f"{name}={value:.4g}" for name, value in figures.items())


def result_table(summary: StudySummary) -> Table:
    """Return every point of the study with its state, the best first."""
    metrics = [goal["metric"] for goal in summary.goals]
    keys = list(summary.space)
    table = Table(title=_title(summary), title_justify="left")
    headers = ["rank", "trial", "state", *(key.removeprefix(ROOT) for key in keys), *metrics, "remark"]
    for header in headers:
        table.add_column(header, overflow="fold", justify="right" if header in ("rank", "trial", *metrics) else "left")
    order = sorted(summary.trials, key=_place)
    for trial in order[:MOST_ROWS]:
        table.add_row(*_row(trial, summary, keys, metrics), style="bold" if trial.number == summary.winner else None)
    if len(order) > MOST_ROWS:
        table.caption = f"{len(order) - MOST_ROWS} more in summary.json"
    return table


def _title(summary: StudySummary) -> str:
    goals = ", ".join(f"{goal['direction']} {goal['metric']}" for goal in summary.goals)
    return f"study {summary.study}: {goals}"


def _place(trial: TrialSummary) -> tuple[bool, int, bool, int]:
    return trial.rank is None, trial.rank or 0, trial.number is None, trial.number or 0


def _row(trial: TrialSummary, summary: StudySummary, keys: list[str], metrics: list[str]) -> list[str]:
    figures = [f"{trial.values[metric]:.4g}" if metric in trial.values else "-" for metric in metrics]
    settings = [_text(trial.params.get(key)) for key in keys]
    number = "-" if trial.number is None else str(trial.number)
    rank = "-" if trial.rank is None else str(trial.rank)
    style = _STYLES.get(trial.state, "dim")
    return [rank, number, f"[{style}]{trial.state}[/]", *settings, *figures, escape(_remark(trial, summary))]


def _remark(trial: TrialSummary, summary: StudySummary) -> str:
    best = "winner" if summary.status == "finished" else "best so far"
    marks = [
        *(["default"] if trial.number is not None and trial.number == summary.baseline else []),
        *([best] if trial.number is not None and trial.number == summary.winner else []),
        *(["Pareto"] if trial.pareto and len(summary.goals) > 1 else []),
        *([trial.reason] if trial.reason else []),
    ]
    return ", ".join(marks)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
