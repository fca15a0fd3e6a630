"""How long the command line takes: help, a composed configuration and a plan, by the wall clock of fresh processes."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.result import Row, main

SGLK = str(Path(sys.executable).with_name("sglk"))
COMMANDS: dict[str, tuple[list[str], float]] = {
    "sglk --help": ([SGLK, "--help"], 0.120),
    "sglk show chip=kunlun model=qwen32b": ([SGLK, "show", "chip=kunlun", "model=qwen32b"], 1.0),
    "sglk plan chip=kunlun model=qwen32b": ([SGLK, "plan", "chip=kunlun", "model=qwen32b"], 0.5),
}
"""Label -> what is run, and the bar in seconds."""
INTERPRETER = [sys.executable, "-c", "pass"]


def wall_s(command: list[str]) -> float:
    """Return the wall time of one run of `command`; raises CalledProcessError when it fails."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(quick: bool) -> list[Row]:
    """Run the commands in turns, so that a busy moment of the machine falls on all of them."""
    labels = {label: command for label, (command, _) in COMMANDS.items()} | {"python -c pass": INTERPRETER}
    for command in labels.values():
        wall_s(command)  # bytecode and page cache
    times: dict[str, list[float]] = {label: [] for label in labels}
    for _ in range(5 if quick else 21):
        for label, command in labels.items():
            times[label].append(wall_s(command))
    rows = [
        Row(f"{label}, median", statistics.median(times[label]), "s", "bar, at most", bar)
        for label, (_, bar) in COMMANDS.items()
    ]
    return [*rows, Row("python -c pass, median", statistics.median(times["python -c pass"]), "s")]


if __name__ == "__main__":
    raise SystemExit(main("startup", measure))
