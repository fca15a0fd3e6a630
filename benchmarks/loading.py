"""What a start takes: seconds until `sglk serve` answers, and the most memory while the weights are loaded.

Both with smollm2, a GGUF file of 90 MB. Memory is that of a process of its own, above what it has before it loads: what
it holds at most, to the weights that it ends with.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.result import Row, main
from sglk.bench.target import LaunchedServer

READY_BAR_S = 6.0
PEAK_BAR = 1.3
FORMATS: dict[str, list[str]] = {
    "fp32": [],
    "w8a8": ["runtime.quantization=w8a8"],
    "w4a16": ["runtime.quantization=w4a16"],
}
WORDS = ("chip=cpu", "model=smollm2", "profiles=none", "server.port=0")

LOAD = """
import json, sys
from sglk.backends.cpu import CpuBackend
from sglk.config.compose import compose
from sglk.models.loader import load_model

def kib(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

config = compose("serve", ["model=smollm2", "profiles=none", *sys.argv[1:]]).config
backend = CpuBackend()
before = kib("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
loaded = load_model(config.model, config.runtime, backend)
weights = loaded.model.weights_bytes
print(json.dumps([(kib("VmHWM") - before) * 1024, weights]))
"""
"""Linux resets the peak of a process that writes 5 to `clear_refs`."""


def measure(quick: bool) -> list[Row]:
    """Start servers one after the other; load each format once."""
    ready = [_ready_s() for _ in range(1 if quick else 5)]
    rows = [Row("until smollm2 is served, median", statistics.median(ready), "s", "bar, at most", READY_BAR_S)]
    for name in ["fp32"] if quick else FORMATS:
        peak, weights = _memory(FORMATS[name])
        label = f"most memory while loading, {name}"
        rows.append(Row(label, peak / 1e6, "MB", f"{PEAK_BAR} x the weights, at most", PEAK_BAR * weights / 1e6))
    return rows


def _ready_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        server = LaunchedServer(WORDS, log=Path(folder) / "log")
        taken = time.perf_counter() - start
        server.close()
    return taken


def _memory(overrides: list[str]) -> tuple[int, int]:
    """Return the most bytes above what was held before, and the bytes of the weights."""
    done = subprocess.run([sys.executable, "-c", LOAD, *overrides], capture_output=True, text=True, check=True)
    peak, weights = json.loads(done.stdout.splitlines()[-1])
    return peak, weights


if __name__ == "__main__":
    raise SystemExit(main("loading", measure))
