"""How fast the machine is at the moment: a few steps of a model, held against what a calibration says of them.

    python -m benchmarks.fidelity_pace WORDS...

loads a deployment, and for every line on standard input takes the steps and prints their seconds as a list. It stands
beside the server that is measured, which rests meanwhile, and knows nothing of what that server does.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import TracebackType

from sglk.config.calibrate_schema import CalibrateConfig
from sglk.config.compose import Composed, compose
from sglk.config.environment import prepare_environment
from sglk.engine.batch import Batch
from sglk.planner.calibration.batches import Pool
from sglk.planner.calibration.entries import Way, prices_of
from sglk.planner.calibration.record import Calibration, Entry, ServingRecord, read
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.shape import StepShape

PREFILLS = tuple(StepShape(((tokens, tokens),), logits=1) for tokens in (48, 128))
DECODES = tuple(StepShape(decodes=(128,) * rows, logits=rows) for rows in (1, 2, 4, 8, 12))
_TIMES = 2
"""How often each of them is taken, in turns."""

Seconds = Sequence[float]
"""Of each of the steps."""


class Pacer:
    """A process that takes the steps of the deployment that `words` say, whenever it is asked."""

    def __init__(self, words: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.fidelity_pace", *words]
        # Where the benchmark was started, not in the folder that it works in.
        folder = Path(__file__).parent.parent
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.seconds()

    def seconds(self) -> Seconds:
        """Return what the steps take now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        found: Seconds = json.loads(self._process.stdout.readline())
        return found

    def __enter__(self) -> "Pacer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Calibrated:
    """A calibration of one model, and what it says of the steps."""

    calibration: Calibration
    expected: Seconds

    @classmethod
    def read(cls, path: Path, words: Sequence[str]) -> "Calibrated":
        """Return what `path` has for the deployment that `words` say."""
        way, calibration = Way.of(_composed(words).config), read(path)
        (entry,) = [entry for entry in calibration.entries if entry.model == way.model]
        # What serving adds is no part of a step that is taken alone.
        prices = replace(prices_of(entry, way), host=HostTime())
        return cls(replace(calibration, entries=[entry]), [prices.step_s(shape) for shape in (*PREFILLS, *DECODES)])

    def pace(self, seconds: Seconds) -> float:
        """Return how many times as long as in the calibration steps take: prompts and decodes count the same."""
        ratios = [now / before for now, before in zip(seconds, self.expected, strict=True)]
        kinds = ratios[: len(PREFILLS)], ratios[len(PREFILLS) :]
        return statistics.geometric_mean(map(statistics.geometric_mean, kinds))

    def at(self, pace: float, path: Path) -> Path:
        """Write the calibration to `path` as if all had taken `pace` times as long."""
        entries = [_slower(entry, pace) for entry in self.calibration.entries]
        replace(self.calibration, entries=entries).save(path)
        return path


def mean(several: Sequence[Seconds]) -> Seconds:
    """Return the mean of each step."""
    return [statistics.fmean(each) for each in zip(*several, strict=True)]


def _slower(entry: Entry, pace: float) -> Entry:
    serving = entry.serving or ServingRecord()
    return replace(
        entry,
        prices={name: price * pace for name, price in entry.prices.items()},
        serving=replace(
            serving,
            host=HostTime(serving.host.step_s * pace, serving.host.row_s * pace),
            arrival_s=serving.arrival_s * pace,
            arrival_token_s=serving.arrival_token_s * pace,
        ),
    )


def _composed(words: Sequence[str]) -> Composed[CalibrateConfig]:
    return compose("calibrate", words)


def _serve(words: Sequence[str]) -> None:
    config = _composed(words).config
    prepare_environment(config.backend)
    runner, _ = import_module("sglk.engine.loading").load_runner(config)
    shapes = (*PREFILLS, *DECODES)
    pool = Pool.for_shapes(shapes, config.runtime.page_size, runner.vocab_size)
    runner.allocate_kv(pool.pages, pool.page_size)
    batches = [pool.batch(shape) for shape in shapes]

    def seconds(batch: Batch) -> float:
        began = time.perf_counter()
        runner.launch(batch)()
        return time.perf_counter() - began

    # The first steps may record what others repeat.
    for batch in (*batches, *batches):
        seconds(batch)
    for _ in sys.stdin:
        # The workers wake up.
        seconds(batches[-1])
        print(json.dumps(mean([[*map(seconds, batches)] for _ in range(_TIMES)])), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
