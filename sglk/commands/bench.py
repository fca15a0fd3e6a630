"""`sglk bench`: measure a deployment, or a running URL, under a workload."""

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sglk.bench.record import Record
from sglk.bench.run import Progress as Done
from sglk.bench.run import Subject, measure
from sglk.bench.table import show
from sglk.bench.target import LaunchedServer, Target, override_key
from sglk.commands.flags import CommonFlags, common_flags
from sglk.commands.help import command_help
from sglk.commands.record_file import check_log, check_output, command_line, free_path, save, why_invalid
from sglk.commands.terminal import console, warn
from sglk.config.bench_schema import BenchConfig
from sglk.config.compose import Composed, compose
from sglk.config.fleet import replica_configs
from sglk.errors import RunError
from sglk.interrupt import uninterrupted

EXAMPLES = (
    "sglk bench chip=cpu model=smollm2 workload=chat",
    "sglk bench bench.url=http://127.0.0.1:8000 workload=random workload.concurrency=16",
    "sglk bench workload=random workload.arrival=poisson workload.rate=4 bench.slo.ttft_s=0.5",
    "for n in 1 4 16; do sglk bench workload.concurrency=$n; done",
)


def run(arguments: Sequence[str]) -> int:
    """Measure, print the figures and write the record; returns 1 when too many requests failed."""
    flags = common_flags(arguments)
    if flags.help:
        command_help("bench", "measure a deployment or a running URL under a workload", BenchConfig, EXAMPLES)
        return 0
    composed = compose("bench", flags.arguments, flags.config_dir)
    config = composed.config
    check_output(config.bench.output)
    if config.bench.url is None:
        # What its server would refuse.
        replica_configs(composed, flags.config_dir)
        check_log()
        warn(composed.warnings)
    subject = _subject(composed, flags.arguments)
    started = datetime.now(timezone.utc)
    with _Bar(config.bench.progress) as bar, _target(composed, flags, started, bar) as target:
        record = measure(
            target,
            config.workload,
            config.bench,
            subject=subject,
            session_header=config.router.session_header,
            command=command_line("bench", arguments),
            on_progress=bar.advance,
            on_break=lambda broken: bar.keep(broken, config.bench.output, started),
        )
    # Neither a full disk nor a reader who has gone costs the result: it is printed first, and written all the same.
    try:
        console().print(show(record))
    finally:
        path = save(record, config.bench.output, started)
    print(f"record: {path}")
    if not record.valid:
        raise RunError(why_invalid(record))
    return 0


def _target(composed: Composed[BenchConfig], flags: CommonFlags, started: datetime, bar: "_Bar") -> Target:
    config = composed.config
    if config.bench.url is not None:
        return Target(config.bench.url, api_key=config.bench.api_key)
    log = free_path(started, config.chip.name, config.model.name, config.workload.name, ".log")
    bar.say(f"starting {config.model.name} on {config.chip.name} (log: {log})")
    return LaunchedServer(
        flags.arguments,
        log=log,
        config_dir=flags.config_dir,
        api_key=config.server.api_key,
        admin_api_key=config.server.admin_api_key,
    )


def _subject(composed: Composed[BenchConfig], words: Sequence[str]) -> Subject:
    """What is known of the target: everything when it is launched, else only what the user said of it."""
    config = composed.config
    asked = {override_key(word) for word in words}
    launched = config.bench.url is None
    model_known = launched or "model" in asked
    return Subject(
        chip=config.chip.name if launched or "chip" in asked else None,
        model=config.model.name if model_known else None,
        engine=config.engine.name if launched or "engine" in asked else None,
        backend=config.backend.name if launched or "backend" in asked else None,
        vocab_size=config.model.vocab_size if model_known else None,
    )


class _Bar:
    """A progress bar on stderr, silent where nobody watches."""

    def __init__(self, wanted: bool) -> None:
        self._console = Console(stderr=True)
        self._wanted = wanted and self._console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._wanted, transient=True)
        self._task = self._progress.add_task("starting", total=None)
        self._done: Done | None = None
        self._broken: Record | None = None
        self._kept = "no record is kept"

    def say(self, text: str) -> None:
        if self._wanted:
            self._console.print(text, highlight=False)

    def advance(self, done: Done) -> None:
        self._done = done
        failed = f", {done.failed} failed" if done.failed else ""
        name = "warming up" if done.phase == "warmup" else "measuring"
        self._progress.update(self._task, description=f"{name}{failed}", completed=done.done, total=done.total)

    def keep(self, broken: Record, output: str | None, started: datetime) -> None:
        """Save the record of a run that was broken off; what became of it is told at the end of the block."""
        # A further Ctrl-C would leave a record that nobody is told of.
        with uninterrupted():
            self._broken = broken
            try:
                path = save(broken, output, started)
            except RunError as error:
                self._kept = str(error)
                return
            self._kept = f"record of what was answered: {path}"
            if output is not None and path != Path(output):
                self._kept += f" ({output} is left as it was)"

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._progress.stop()
        # Before the figures: whoever reads those may be gone.
        if kind is KeyboardInterrupt and (done := self._done) is not None:
            phase = "warm-up" if done.phase == "warmup" else "measured"
            print(
                f"sglk: interrupted after {done.done} of {done.total} {phase} requests; {self._kept}", file=sys.stderr
            )
        elif self._broken is not None:
            print(f"sglk: {self._kept}", file=sys.stderr)
        if self._broken is not None:
            console().print(show(self._broken))
