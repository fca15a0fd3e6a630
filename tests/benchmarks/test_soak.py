"""The soak in half a minute: everything at once, and nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_left_over(tmp_path: Path) -> None:
    result = tmp_path / "soak.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--quick", "--json", str(result)]
    soak = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert soak.returncode == 0, soak.stderr
    assert soak.stderr == ""
    figures = {row["metric"]: row["value"] for row in json.loads(result.read_text())["rows"]}
    assert figures["requests that ended as completed"] > 100
    assert figures["groups killed"] >= 1
    zeros = [name for name in figures if name.startswith("left over") or name in ("requests lost", "threads left over")]
    assert len(zeros) == 11
    assert {figures[name] for name in zeros} == {0}
