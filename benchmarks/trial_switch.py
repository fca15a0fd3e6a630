"""How long a study is idle between two trials: from the end of one measurement to the first request of the next.

A whole session of the tuner runs on smollm2, books and files included, with its clock read where a measurement ends
and where the next one begins. What a restart of the engine would cost instead stands beside it.
"""

import statistics
import tempfile
import time
from pathlib import Path

from sglk_tuner.engine import Engine
from sglk_tuner.identity import identity_of
from sglk_tuner.measurement import launcher, measurer
from sglk_tuner.objective import goals_of
from sglk_tuner.proposals import Proposal, Proposals
from sglk_tuner.session import Session
from sglk_tuner.space import Params, build_space, params_of
from sglk_tuner.study import open_study
from sglk_tuner.summary import StudySummary, TrialSummary
from sglk_tuner.trial import Bench

from benchmarks.result import Row, main
from sglk.bench.record import Record
from sglk.bench.run import Progress
from sglk.bench.target import LaunchedServer
from sglk.config.compose import compose
from sglk.config.tune_schema import TuneConfig

BAR_S = 1.0
SMALL = ("workload.num_requests=4", "workload.input_len=32", "workload.output_len=8", "workload.warmup_requests=1")


class Clock:
    """Notes the gaps between measurements, and the starts of the engine."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []
        self.starts_s: list[float] = []
        self._ended: float | None = None

    def progressed(self, progress: Progress) -> None:
        """Take the first sign of a measurement as its start: the next thing on the wire is a request."""
        if self._ended is not None:
            self.gaps_s.append(time.perf_counter() - self._ended)
            self._ended = None

    def ended(self) -> None:
        """A measurement is over."""
        self._ended = time.perf_counter()


class Silence:
    """Shows nothing of the session."""

    def note(self, text: str) -> None: ...

    def begin(self, number: int, proposal: Proposal) -> None: ...

    def end(self, trial: TrialSummary, summary: StudySummary) -> None: ...

    def again(self, params: Params, name: str) -> None: ...


def measure(quick: bool) -> list[Row]:
    """Run a study whose trials all keep the loaded weights."""
    with tempfile.TemporaryDirectory() as folder:
        clock = _session(Path(folder), trials=4 if quick else 12)
    gaps, start_s = clock.gaps_s, clock.starts_s[0]
    return [
        Row(f"idle between two trials, median of {len(gaps)}", statistics.median(gaps), "s", "bar, at most", BAR_S),
        Row("idle between two trials, longest", max(gaps), "s", "bar, at most", BAR_S),
        Row("idle between two trials, median", statistics.median(gaps), "s", "start of the engine", start_s),
    ]


def _session(folder: Path, trials: int) -> Clock:
    words = ["chip=cpu", "model=smollm2", "workload=random", "profiles=none", *SMALL]
    composed = compose("tune", [*words, f"study.directory={folder}", f"search.n_trials={trials}"])
    config = composed.config
    goals, space, clock = goals_of(config), build_space(config), Clock()
    default = params_of(config, space.candidates)
    proposals = Proposals(space, default, goals, config.search)
    launch = launcher(composed, None, list(space.candidates), lambda server: None)
    drive = measurer(clock.progressed, "python -m benchmarks.trial_switch")

    def timed_launch(wanted: TuneConfig, log: Path) -> LaunchedServer:
        start = time.perf_counter()
        server = launch(wanted, log)
        clock.starts_s.append(time.perf_counter() - start)
        return server

    def timed(target: LaunchedServer, wanted: TuneConfig, name: str) -> Record:
        record = drive(target, wanted, name)
        clock.ended()
        return record

    identity = identity_of(config, space, goals, default)
    with open_study(config, space, goals, default, identity) as study, Engine(config, timed_launch, folder) as engine:
        Session(config, study, proposals, Bench(config, engine, timed, goals, study.folder), Silence()).run()
    assert len(clock.starts_s) == 1, "a trial restarted the engine"
    return clock


if __name__ == "__main__":
    raise SystemExit(main("trial_switch", measure, ("optuna", "torch")))
