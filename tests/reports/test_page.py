"""The page needs nothing but itself, says what kind of figures it shows, and takes no text for markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sglk_reports.markdown import escape, to_markdown
from sglk_reports.page import to_page
from sglk_reports.report import Report, build_report
from sglk_reports.sources import find_sources

from tests.reports.folders import CHUNK, WINDOW, record, study

EVIL = "</script><img src=x onerror=alert(1)>|`*[a](http://evil.example)"


class Tags(HTMLParser):
    """Collects tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.styles: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "style":
            self.styles.append(data)
        elif self._open != "script":
            self.text.append(data)


def report_of(root: Path) -> Report:
    return build_report(find_sources([], root))


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("evil")
    study(root / "studies", failing={CHUNK: 1024, WINDOW: 16}, reason=EVIL)
    for number in range(2):
        run = record(f"{EVIL}{number}", chip=EVIL, ttft_s=0.1 + number, runtime={EVIL: number, "note": EVIL})
        run.warnings = [EVIL]
        run.machine.cpu = EVIL
        run.save(root / f"runs/{number}.json")
    (root / "runs/<b>bad.json").write_text("{")
    return report_of(root)


def test_nothing_is_loaded_from_elsewhere(evil: Report) -> None:
    page = Tags(to_page(evil))
    links = [value or "" for _, attributes in page.tags for name, value in attributes.items() if name in LOADING]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\(|@import", "".join(page.styles))


LOADING = ("src", "href", "srcset", "action", "data", "poster")


def test_no_text_becomes_markup(evil: Report) -> None:
    page = Tags(to_page(evil))
    assert "img" not in {tag for tag, _ in page.tags}
    assert "b" not in {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert EVIL in "".join(page.text)


def test_chart_texts_are_escaped_for_plotly_too(evil: Report) -> None:
    for section in evil.sections:
        for chart in section.charts:
            assert "<img" not in json.dumps(chart.figure.to_plotly_json(), default=list)


def test_markdown_keeps_its_tables_and_no_markup(evil: Report) -> None:
    text = to_markdown(evil)
    assert "<img" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(columns) == 1


def test_escaped_text_stays_readable() -> None:
    assert escape("chunked_prefill_size=512, 5 < 6 | _x_") == r"chunked_prefill_size=512, 5 &lt; 6 \| \_x\_"


def test_the_page_says_what_is_measured_and_what_is_simulated(tmp_path: Path) -> None:
    study(tmp_path / "studies", "real")
    study(tmp_path / "studies", "imagined", chip="kunlun", kind="simulated")
    report = report_of(tmp_path)
    page = to_page(report)
    assert [section.kind for section in report.sections] == ["simulated", "measured"]
    for kind in ("measured", "simulated"):
        assert f'class="badge {kind}"' in page
    assert report.chip_table.rows == []


def test_every_trial_is_on_the_page_with_its_state_and_reason(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 16}, reason="out of memory at start")
    page = "".join(Tags(to_page(report_of(tmp_path))).text)
    assert "FAIL: out of memory at start" in page
    assert "engine-1.log" in page


def test_the_page_names_machine_versions_and_traffic(tmp_path: Path) -> None:
    run = record("one")
    run.save(tmp_path / "runs/one.json")
    page = "".join(Tags(to_page(report_of(tmp_path))).text)
    for word in ("Example CPU", "torch 2.13.0", "0123456789ab", run.workload["hash"][:12], "4 in flight"):
        assert word in page


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({}, "closed loop, 4 in flight"),
        ({"arrival": "poisson", "rate": 2.5}, "open loop, Poisson, 2.5 requests/s, at most 4 in flight"),
        (
            {"arrival": "trace", "time_scale": 0.5, "concurrency": 0},
            "open loop, as the trace says, at 0.5 times its seconds",
        ),
    ],
)
def test_the_arrivals_are_those_of_the_record(tmp_path: Path, workload: dict[str, Any], said: str) -> None:
    record("one", workload=workload).save(tmp_path / "runs/one.json")
    (section,) = report_of(tmp_path).sections
    assert dict(section.provenance)["arrivals"] == said


def test_prompts_of_a_file_have_its_lengths(tmp_path: Path) -> None:
    record("one", workload={"file": "trace.jsonl"}).save(tmp_path / "runs/one.json")
    (section,) = report_of(tmp_path).sections
    assert "chat: lengths of trace.jsonl, seed 0" in dict(section.provenance)["workload"]


def test_figures_of_two_machines_are_a_warning(tmp_path: Path) -> None:
    for number in range(2):
        run = record(f"run-{number}")
        run.machine.cpu = f"CPU {number}"
        run.save(tmp_path / f"runs/{number}.json")
    (section,) = report_of(tmp_path).sections
    assert "the figures come from 2 different machines" in section.warnings
