"""docs/fidelity.md, out of the result of a run."""

from typing import Any

_INTRO = """\
# How far the simulator may be trusted

Predictions of `sglk simulate`, after `sglk calibrate`, against `sglk bench` on a running server of the same machine.
The calibration measures single steps and what serving adds to them; it has seen none of the settings, loads and
workloads below.

A machine is not as fast at all times. So the settings of a cell, one workload at one load, are measured one right after
the other, in five passes, every other one backwards, and compared by the ratios of runs in one pass. A calibration
stands on either side of each pass; of predictions too the median counts.

What is left of an error may be the simulator's, or that of a machine which was faster or slower in a run than in the
minutes of the calibrations. To tell them apart another process, which knows nothing of the server, takes seven steps of
the same model, two prompts and five decodes, before and after every run, in less than a second. What they take beside
the settings of a cell, over what a calibration says of them, is the pace of the machine in that pass. How far
predictions are when every time of the calibration is multiplied by it is given below each error; ranks and regret are
those of the calibrations as they stand.

Two settings are a tie where the passes do not tell them apart: where an interval that holds the true median of their
ratio by 90 % holds 1 (of five passes: where not all order them alike), or where that median is within 1 % of it.
Predictions within 1 % of each other are ties as well. Ranks and regret are given twice: over all pairs of settings, by
Kendall's tau-b, which counts a tie of one side alone as a miss in part, and over those that runs tell apart.

Where requests come more slowly than they are served, throughput is the pace at which they come, whatever the setting.
It is neither ranked nor counted there. The settings of a cell were chosen for what they make the engine do; pairs that
an earlier layout had measured, and predicted, as near ties were taken out. `benchmarks/fidelity_cells.py` has them.
"""


def page(result: dict[str, Any]) -> str:
    """Return the page."""
    machine, rows = result["machine"], result["rows"]
    facts = (
        f"{result['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, sglk {result['versions']['sglk']}, "
        f"torch {result['versions']['torch']}\n\n```sh\n{result['command']}\n```\n"
    )
    scores = [row for row in rows if " | " not in row["metric"]]
    points = [row for row in rows if " | " in row["metric"] and " | run " not in row["metric"]]
    runs: dict[str, list[float]] = {}
    for row in rows:
        point, _, number = row["metric"].partition(" | run ")
        if number:
            runs.setdefault(point, []).append(row["value"])
    return "\n".join(
        [_INTRO, facts, "## Scores\n", *_scores(scores), "\n## Points\n", _NOTE, *_points(points, runs), ""]
    )


_NOTE = (
    "Predicted / median measured (lowest to highest); times in milliseconds, throughput in output tokens per second.\n"
)


def _scores(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| score | value | bar |", "|---|---|---|"]
    for row in rows:
        share = "correlation" not in row["metric"]
        bar = (
            ""
            if row["against"] is None
            else f"{row['against'].removeprefix('bar, ')} {_number(row['other_value'], share)}"
        )
        lines.append(f"| {row['metric']} | {_number(row['value'], share)} | {bar} |")
    return lines


def _points(rows: list[dict[str, Any]], runs: dict[str, list[float]]) -> list[str]:
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        *place, metric = row["metric"].split(" | ")
        scale = 1000 if metric.endswith(("_p50", "_p99")) else 1
        low, high = (f"{scale * pick(runs[row['metric']]):.4g}" for pick in (min, max))
        measured = f"{row['other_value'] * scale:.4g} ({low} to {high})"
        cell = f"{row['value'] * scale:.4g} / {measured} {row['ratio'] - 1:+.0%}"
        found.setdefault(tuple(place), {})[metric] = cell
    metrics = list(dict.fromkeys(row["metric"].split(" | ")[-1] for row in rows))
    lines = ["| model | workload and load | setting | " + " | ".join(metrics) + " |", "|---" * (3 + len(metrics)) + "|"]
    for place, cells in found.items():
        lines.append("| " + " | ".join([*place, *(cells.get(metric, "") for metric in metrics)]) + " |")
    return lines


def _number(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.2f}"
