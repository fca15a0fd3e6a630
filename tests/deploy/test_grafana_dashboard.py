"""The Grafana dashboard against a real scrape: a panel that asks for what is not there stays empty for ever."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglk.backends.ops import Choice
from sglk.engine.op_report import OpReport
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import serving

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana-dashboard.json").read_text())

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

VARIABLES = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]

EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + [
    each["query"]["query"] for each in VARIABLES
]


class FallingBack(ScriptedRunner):
    """Has an op that runs the reference, as chips have; without one there is no sample of it."""

    def op_report(self) -> OpReport:
        return OpReport((Choice("rope", (), "reference", "no op of the chip", fallback=True),))


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of every sample of a server that has answered something."""
    runners = {"a": FallingBack(), "b": FallingBack()}
    found: dict[str, set[str]] = defaultdict(set)
    with serving(runners) as served:
        for _ in range(2):
            served.post("/v1/completions", {"prompt": "hello", "max_tokens": 4, "ignore_eos": True})
        for family in text_string_to_metric_families(served.get("/metrics").text):
            for sample in family.samples:
                found[sample.name] |= set(sample.labels)
    return found


def metrics(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:sglk_|sglang:)\w+", expression))


def test_every_metric_exists(labels: dict[str, set[str]]) -> None:
    asked = set().union(*map(metrics, EXPRESSIONS))
    assert len(asked) > 25
    assert asked <= set(labels)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_exists(labels: dict[str, set[str]], expression: str) -> None:
    for name, matchers in re.findall(r"\b(sglk_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*[!=]~?", matchers)) <= labels[name], name
    kept = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")}
    for name in metrics(expression):
        assert kept <= labels[name], name


def test_panels_lie_beside_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
