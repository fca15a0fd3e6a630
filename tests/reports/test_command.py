"""`sglk report` from its arguments to its files."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglk.cli import main
from tests.reports.folders import CHUNK, WINDOW, record, study


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_study_becomes_a_table_and_three_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(folder / "studies", "mine", failing={CHUNK: 1024, WINDOW: 16}, reason="killed")
    assert main(["report", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "FAIL: killed" in shown
    assert "winner" in shown
    assert sorted(path.name for path in (folder / "report").iterdir()) == ["mine.csv", "mine.html", "mine.md"]
    with (folder / "report/mine.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6


def test_several_sources_share_one_report_in_the_folder_asked_for(folder: Path) -> None:
    study(folder / "studies", "mine")
    record("one").save(folder / "runs/one.json")
    assert main(["report", "--out", "there/deep"]) == 0
    assert (folder / "there/deep/report.html").is_file()


def test_json_is_strict_and_has_every_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(folder / "studies", "mine", failing={CHUNK: 1024, WINDOW: 16})
    assert main(["report", "--json", "--metric", "ttft_s_p99"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (ranking,) = found["rankings"]
    assert ranking["goals"] == ["minimize:ttft_s_p99"]
    assert len(ranking["rows"]) == 6
    assert ranking["rows"][-1]["rank"] is None
    assert ranking["rows"][-1]["state"] == "FAIL"
    assert all(Path(path).is_file() for path in found["files"])


def test_a_damaged_file_is_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record("one").save(folder / "runs/one.json")
    (folder / "runs/bad.json").write_text("{")
    assert main(["report"]) == 0
    assert "warning: skipped: 'runs/bad.json'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nothing"], 2, "'nothing' is no file"),
        (["runs/bad.json"], 1, "no file is readable"),
        (["--metric", "ttft_p99"], 2, "did you mean 'ttft_s_p99'"),
        (["--metric", "up:ttft_s_p99"], 2, "maximize:ttft_s_p99"),
        (["--metric"], 2, "--metric needs a figure"),
        (["--jsom"], 2, "did you mean '--json'"),
        (["--out", "runs/one.json"], 2, "cannot write the report"),
    ],
)
def test_mistakes_get_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    record("one").save(folder / "runs/one.json")
    (folder / "runs/bad.json").write_text("{")
    assert main(["report", *arguments]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if "warning: skipped" not in line]
    assert len(errors) == 1
    assert said in errors[0]


def test_help_needs_neither_pandas_nor_plotly(folder: Path) -> None:
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['plotly'] = None\n"
        "from sglk.cli import main\n"
        "sys.exit(main(['report', *sys.argv[1:]]))"
    )
    record("one").save(folder / "runs/one.json")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)

    assert run("--help").stdout.startswith("usage: sglk report")
    missing = run()
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
    assert "pip install 'sglk[report]'" in missing.stderr
