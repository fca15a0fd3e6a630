"""`sglk calibrate`: measure the engine's own steps, so that plans and simulations know what they take here."""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sglk import atomic_file
from sglk.commands.calibrate_serving import ServingRuns
from sglk.commands.calibrate_table import print_calibration
from sglk.commands.flags import CommonFlags, common_flags
from sglk.commands.help import command_help
from sglk.commands.terminal import warn
from sglk.config.calibrate_schema import CalibrateConfig
from sglk.config.compose import compose
from sglk.config.secrets import masked
from sglk.errors import ConfigError, RunError
from sglk.planner.calibration.entries import Way
from sglk.planner.calibration.find import file_name, files_in
from sglk.planner.calibration.record import Calibration, Machine, ServingRecord, read
from sglk.planner.calibration.steps import Measured, measure_model
from sglk.planner.placement import place

_SUMMARY = (
    "Run the model's own steps (prompt chunks, decodes, both behind short and long contexts) for some minutes, fit a\n"
    "price to everything that a step is made of, and write ./calibration/<chip>-<machine>.json. `sglk plan`,\n"
    "`simulate` and `tune` pick it up on the same machine. Nothing else should run meanwhile."
)
_EXAMPLES = (
    "sglk calibrate chip=cpu model=smollm2",
    "sglk calibrate chip=cpu model=smollm2 runtime.quantization=w8a8 calibrate.repeats=9",
    "sglk calibrate chip=cuda model=qwen7b runtime.load_format=dummy calibrate.serving=false",
)


def run(arguments: Sequence[str]) -> int:
    """Measure, fit, print and write the calibration."""
    flags = common_flags(arguments)
    if flags.help:
        command_help("calibrate", _SUMMARY, CalibrateConfig, _EXAMPLES)
        return 0
    composed = place(compose("calibrate", flags.arguments, flags.config_dir), flags.config_dir).composed
    config: CalibrateConfig = composed.config
    _check_folder(config)
    # The fit needs it, and whoever lacks it hears of that before the minutes of measuring.
    import_module("scipy")
    warn(composed.warnings)
    with _Bar(config.calibrate.progress) as bar:
        bar.say(f"loading {config.model.name} on {config.chip.name}")
        measured = measure_model(config, _command_line(arguments), bar.step)
        if config.calibrate.serving and measured.entry.kind == "measured":
            bar.kept = _kept_so_far(measured, config)
            measured.entry.serving = _serving(measured, config, flags, bar)
    # Neither a full disk nor a reader who has gone costs the result: it is printed first, and written all the same.
    try:
        print_calibration(measured, Way.of(config), config.chip)
    finally:
        path = _save(measured, config)
    print(f"calibration: {path}")
    return 0


def _kept_so_far(measured: Measured, config: CalibrateConfig) -> str:
    """Keep the steps, unless an older calibration tells more; return what is said of it should serving fail."""
    path = _path(measured, config)
    older = [
        each for each in _existing(path, config.chip.name, measured.machine).entries if measured.entry.replaces(each)
    ]
    if older and older[0].serving is not None:
        return "the older calibration stays"
    _save(measured, config)
    return "the steps are kept"


def _serving(measured: Measured, config: CalibrateConfig, flags: CommonFlags, bar: "_Bar") -> ServingRecord:
    directory = Path(flags.config_dir) if flags.config_dir else None
    runs = ServingRuns(config, flags.arguments, directory, bar.say, bar.progress)
    try:
        return runs.measure(measured.entry)
    except RunError as error:
        raise RunError(f"{bar.kept}; what serving adds was not measured: {error}") from error


def _save(measured: Measured, config: CalibrateConfig) -> Path:
    """Write what is measured so far beside what the file has of other models."""
    path = _path(measured, config)
    try:
        with atomic_file.one_at_a_time(path.parent):
            _existing(path, config.chip.name, measured.machine).with_entry(measured.entry).save(path)
    except OSError as error:
        alone = Calibration(config.chip.name, measured.machine, [measured.entry])
        kept = atomic_file.rescue("calibration", alone.to_json())
        raise RunError(f"cannot write the calibration to {str(path)!r}: {error.strerror}{kept}") from error
    return path


def _path(measured: Measured, config: CalibrateConfig) -> Path:
    return Path(config.calibrate.folder) / file_name(config.chip.name, measured.machine)


def _check_folder(config: CalibrateConfig) -> None:
    """Refuse what would keep the result from being written before the minutes of measuring rather than after."""
    folder = Path(config.calibrate.folder)
    present = files_in(folder, config.chip.name) if folder.is_dir() else []
    for path in [folder / "calibration.json", *present]:
        if (why := atomic_file.obstacle(path)) is not None:
            raise ConfigError(f"cannot write to calibrate.folder={folder}: {why}; write another folder")
    for path in present:
        read(path)


def _existing(path: Path, chip: str, machine: Machine) -> Calibration:
    return read(path) if path.exists() else Calibration(chip, machine, [])


def _command_line(arguments: Sequence[str]) -> str:
    """Return the command as it was typed, without its keys."""
    shown = []
    for word in arguments:
        key, equals, value = word.partition("=")
        shown.append(f"{key}{equals}{masked(value, key.rpartition('.')[2])}")
    return shlex.join(["sglk", "calibrate", *shown])


class _Bar:
    """How far the steps are, on stderr: a bar where somebody watches, else a line for each part of the work."""

    def __init__(self, wanted: bool) -> None:
        self.kept = "what was not measured whole is not kept"
        """What an interruption leaves."""
        self._console = Console(stderr=True)
        self._wanted = wanted
        self._watched = wanted and self._console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._watched, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._text = ""

    def say(self, text: str) -> None:
        """Name what is done now."""
        self._text = text
        self._progress.update(self._task, description=text, completed=0, total=None)
        if self._wanted and not self._watched:
            print(f"sglk: {text}", file=sys.stderr, flush=True)

    def step(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps are measured."""
        if done == 1:
            self.say("measuring steps")
        self.progress(done, total)

    def progress(self, done: int, total: int) -> None:
        """Show that `done` of `total` parts of what is done now are over."""
        self._progress.update(self._task, completed=done, total=total)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if kind is KeyboardInterrupt:
            print(f"sglk: interrupted while {self._text}; {self.kept}", file=sys.stderr)
