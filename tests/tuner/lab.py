"""A folder in which studies run against a scripted engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sglk.cli import main
from tests.processes import is_alive

SMALL = (
    "workload=random",
    "workload.num_requests=2",
    "workload.warmup_requests=0",
    "workload.input_len=8",
    "workload.output_len=4",
    "workload.concurrency=2",
    "bench.progress=false",
    "study.name=s",
    "study.start_timeout_s=120",
)
"""A measurement that takes some hundredths of a second."""

FAST = 10**18
"""So many tokens in place of four make a setting win whatever the machine does meanwhile.

The interval of two pairs, one ten times as slow as the other, takes six of the seventeen digits.
"""

RUNNER = Path(__file__).with_name("run_tune.py")


class Lab:
    """A folder with a scripted engine in which `sglk tune` runs, in this process or in one of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events_file = folder / "events.jsonl"
        self.study = folder / "studies" / "s"
        self.profile = folder / "profiles" / "cpu" / "smollm2.yaml"
        self.script_file = folder / "script.json"
        self.script()

    def script(self, *rules: dict[str, Any], **more: Any) -> None:
        """Say what the engine does; see `fake_engine.py`."""
        self.script_file.write_text(json.dumps({"events": str(self.events_file), "rules": rules, **more}))

    def words(self, space: dict[str, list[Any]], *words: str) -> list[str]:
        """Return the command line for a study of exactly this space."""
        conf = self.folder / "conf" / "search"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "mine.yaml").write_text(json.dumps({"name": "mine", "space": space}))
        return ["--config-dir", "conf", "chip=cpu", "model=smollm2", *SMALL, "search=mine", *words]

    def tune(self, space: dict[str, list[Any]], *words: str) -> int:
        """Run `sglk tune` here and return its exit code."""
        return main(["tune", *self.words(space, *words)])

    def start(self, space: dict[str, list[Any]], *words: str) -> "subprocess.Popen[str]":
        """Start `sglk tune` as a process."""
        command = [sys.executable, str(RUNNER), *self.words(space, *words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def summary(self) -> dict[str, Any]:
        """The study's summary."""
        content: dict[str, Any] = json.loads((self.study / "summary.json").read_text())
        return content

    def trials(self, *states: str) -> list[dict[str, Any]]:
        """Return the trials in these states."""
        return [trial for trial in self.summary["trials"] if trial["state"] in states]

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what the engine noted."""
        if not self.events_file.exists():
            return []
        events = [json.loads(line) for line in self.events_file.read_text().splitlines() if line.endswith("}")]
        return [event for event in events if event["event"] in kinds]

    def measured(self, key: str) -> list[Any]:
        """Return the values of a runtime key in the order in which requests met them, repeats of one run joined."""
        values = [event["runtime"].get(key) for event in self.events("generate")]
        return [value for place, value in enumerate(values) if place == 0 or values[place - 1] != value]

    def engine_pids(self) -> set[int]:
        """Return the engines that live."""
        return {event["pid"] for event in self.events("start") if is_alive(event["pid"])}
