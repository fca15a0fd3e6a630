"""One study on an Optuna storage: created once, resumed exactly, never mixed with another."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.pool import QueuePool

from sglk import atomic_file
from sglk.bench.record import Record
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError, RunError
from sglk.interrupt import uninterrupted
from sglk_tuner import owner
from sglk_tuner.distributions import PointSampler, distributions_of
from sglk_tuner.identity import Identity, differences
from sglk_tuner.objective import Goal
from sglk_tuner.outcome import Outcome
from sglk_tuner.space import Params, Space
from sglk_tuner.summary import TrialSummary

IDENTITY, OWNER = "sglk:identity", "sglk:owner"


@dataclass(frozen=True)
class Books:
    """Where a study is kept: the storage with its trials and the folder with its records."""

    url: str
    folder: Path

    @contextmanager
    def open(self) -> Iterator[None]:
        """Turn what the storage fails with, such as a full disk, into RunError."""
        try:
            with uninterrupted():
                yield
        except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
            raise RunError(
                f"cannot use the study storage {_without_password(self.url)!r} (records in '{self.folder}'): "
                f"{_reason(error)}; "
                "mend that, and the same command goes on from here"
            ) from error


class Study:
    """The books of one study. Use `open_study`; one process owns it at a time."""

    def __init__(
        self,
        study: OptunaStudy,
        books: "Books",
        goals: tuple[Goal, ...],
        space: Space,
        default: Params,
        silent_s: float,
    ) -> None:
        self.name = study.study_name
        self.folder = books.folder
        self._books = books
        self.goals = goals
        self.space = space
        self.default = default
        self._study = study
        self._silent_s = silent_s
        self._distributions = distributions_of(space.candidates, default)
        self._running: dict[int, Trial] = {}

    @property
    def created(self) -> str:
        """Start of the first trial, or now (UTC, ISO 8601)."""
        times = [trial.datetime_start for trial in self._trials() if trial.datetime_start]
        first = min(times).astimezone(timezone.utc) if times else datetime.now(timezone.utc)
        return first.isoformat(timespec="seconds")

    def trials(self) -> list[TrialSummary]:
        """Return all trials in the order of their numbers."""
        return [self._row(trial) for trial in self._trials()]

    def lost(self) -> set[int]:
        """Return the numbers of trials that ended by no fault of their setting."""
        return {trial.number for trial in self._trials() if trial.user_attrs.get("lost")}

    def begin(self, params: Params, source: str) -> int:
        """Start a trial of `params` and return its number."""
        self.keep()
        with self._books.open():
            self._study.sampler = PointSampler(params)
            trial = self._study.ask(self._distributions)
            trial.set_user_attr("source", source)
        self._running[trial.number] = trial
        return trial.number

    def keep(self) -> None:
        """Say that this process still runs the study; another machine takes over what was silent for too long.

        Raises RunError when one has: a machine may have slept, or another's clock be fast.
        """
        with self._books.open():
            self._stay()
            self._study.set_user_attr(OWNER, owner.this_process(self._silent_s))

    def stay(self) -> None:
        """Raise RunError where another process has taken the study over: what stands in its folder is that one's."""
        with self._books.open():
            self._stay()

    def should_prune(self, number: int, value: float) -> bool:
        """Store the value that a short probe gave for trial `number`; tell whether the pruner gives the trial up."""
        trial = self._running[number]
        with self._books.open():
            self._stay()
            trial.report(value, step=0)
            return trial.should_prune()

    def finish(self, number: int, outcome: Outcome) -> None:
        """Store what became of trial `number`."""
        trial = self._running.pop(number)
        self._close(trial, outcome)

    def read(self, key: str) -> Any:
        """Return what `write` stored under `key`, or None."""
        with self._books.open():
            return self._study.user_attrs.get(f"sglk:{key}")

    def write(self, key: str, value: Any) -> None:
        """Store a JSON-like value beside the trials."""
        with self._books.open():
            self._stay()
            self._study.set_user_attr(f"sglk:{key}", value)

    def record(self, name: str) -> Record:
        """Return a measurement of this study by its file's name; raises RunError where the file is lost or damaged."""
        try:
            return Record.load_file(self.folder / name)
        except RunError as error:
            raise RunError(f"{error}; bring the file back, or start a new study with study.name=...") from error

    def close_ghosts(self) -> list[int]:
        """Close the trials that a dead process left running and return their numbers; their points run once more."""
        ghosts = [trial for trial in self._trials() if trial.state in (TrialState.RUNNING, TrialState.WAITING)]
        for ghost in ghosts:
            self._close(Trial(self._study, ghost._trial_id), Outcome("FAIL", reason="killed", lost=True))
        return [ghost.number for ghost in ghosts]

    def release(self) -> None:
        """Let other processes use the study."""
        with self._books.open():
            if owner.is_this_process(self._study.user_attrs.get(OWNER)):
                self._study.set_user_attr(OWNER, None)

    def _stay(self) -> None:
        holder = self._study.user_attrs.get(OWNER)
        if not owner.is_this_process(holder):
            taker = owner.words(holder) if holder else "another process"
            raise RunError(
                f"study {self.name!r} was taken over by {taker}, by whose clock this one was silent for too long; "
                "it goes on there; look whether the clocks of both machines agree"
            )

    def _trials(self) -> list[FrozenTrial]:
        with self._books.open():
            return self._study.get_trials(deepcopy=False)

    def _close(self, trial: Trial, outcome: Outcome) -> None:
        state = TrialState[outcome.state]
        with self._books.open():
            self._stay()
            for name in ("reason", "record", "log"):
                trial.set_user_attr(name, getattr(outcome, name))
            if outcome.lost:
                trial.set_user_attr("lost", True)
            self._study.tell(trial, outcome.values if state is TrialState.COMPLETE else None, state)

    def _row(self, trial: FrozenTrial) -> TrialSummary:
        attrs = trial.user_attrs
        metrics = [goal.metric for goal in self.goals]
        values = trial.values if trial.state is TrialState.COMPLETE else []
        started = trial.datetime_start.astimezone(timezone.utc) if trial.datetime_start else None
        return TrialSummary(
            number=trial.number,
            state=trial.state.name,
            source=attrs.get("source", "unknown"),
            params=dict(trial.params),
            values=dict(zip(metrics, values, strict=bool(values))),
            reason=attrs.get("reason"),
            record=attrs.get("record"),
            log=attrs.get("log"),
            started=started.isoformat(timespec="seconds") if started else None,
            duration_s=trial.duration.total_seconds() if trial.duration else None,
        )


def study_name(config: TuneConfig) -> str:
    """Return the study's name: the user's, or one made of what it measures."""
    parts = (config.chip.name, config.model.name, config.workload.name, config.objective.name)
    name = config.study.name or "-".join(parts)
    if "/" in name or name.startswith("."):
        raise ConfigError(f"study.name={name!r} names a folder inside study.directory; leave out '/' and a leading '.'")
    return name


def check_folder(config: TuneConfig) -> None:
    """Raise ConfigError where the study could not be written."""
    folder = Path(config.study.directory) / study_name(config)
    if (why := atomic_file.obstacle(folder / "study.db")) is not None:
        raise ConfigError(f"study.directory={config.study.directory!r}: cannot write '{folder}': {why}; name another")


@contextmanager
def open_study(
    config: TuneConfig, space: Space, goals: tuple[Goal, ...], default: Params, identity: Identity
) -> Iterator[Study]:
    """Create or resume the study that `config` names and own it until the end of the block.

    Raises RunError when another process runs it or it cannot be read, ConfigError when it was made for something else.
    """
    name = study_name(config)
    folder = Path(config.study.directory) / name
    with owner.lock_folder(folder):
        file = folder.absolute() / "study.db"
        books = Books(config.study.storage or f"sqlite:///{file}", folder)
        silent_s = 60.0 + config.study.start_timeout_s + config.study.trial_timeout_s
        study = _load(books, file, name, goals, config)
        with books.open():
            _claim(study, identity)
            study.set_user_attr(OWNER, owner.this_process(silent_s))
        opened = Study(study, books, goals, space, default, silent_s)
        try:
            yield opened
        except RunError:
            # A storage that cannot be written to keeps the name of this process, whose end frees the study as well.
            with suppress(RunError):
                opened.release()
            raise
        except BaseException:
            opened.release()
            raise
        opened.release()


def _load(books: Books, file: Path, name: str, goals: tuple[Goal, ...], config: TuneConfig) -> OptunaStudy:
    optuna.logging.get_logger("optuna").setLevel(logging.WARNING)
    median = optuna.pruners.MedianPruner(n_startup_trials=4)
    pruner = median if config.search.pruner == "median" else optuna.pruners.NopPruner()
    try:
        return optuna.create_study(
            storage=config.study.storage or _storage_in(file),
            study_name=name,
            directions=[goal.direction for goal in goals],
            pruner=pruner,
            load_if_exists=True,
        )
    except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError, ImportError, RuntimeError, ValueError) as error:
        what = f"cannot open the study storage {_without_password(books.url)!r}: {_reason(error)}"
        if config.study.storage is None:
            raise RunError(f"{what}; mend that, and the same command goes on from here") from error
        raise ConfigError(
            f"{what}; study.storage is the address of an SQL database that can be written to, such as"
            " sqlite:///studies.db or postgresql://host/name"
        ) from error


def _storage_in(file: Path) -> RDBStorage:
    """Return the storage in an SQLite file named by its path: in a URL, `?`, `%` and `{` mean something else."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(file, check_same_thread=False)

    return RDBStorage("sqlite://", engine_kwargs={"creator": connect, "poolclass": QueuePool})


def _reason(error: Exception) -> str:
    # Optuna wraps the database's own words.
    cause = error.__cause__ if isinstance(error, StorageInternalError) else None
    return str(cause or error).strip().partition("\n")[0]


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _claim(study: OptunaStudy, identity: Identity) -> None:
    """Refuse a study that another process runs or that was made for something else; mark a new one as ours."""
    other = study.user_attrs.get(OWNER)
    if other and owner.may_be_alive(other):
        raise RunError(
            f"study {study.study_name!r} is being run by {owner.words(other)}; "
            "wait for it, or start another with study.name=..."
        )
    known = study.user_attrs.get(IDENTITY)
    if known is None and study.get_trials(deepcopy=False):
        raise ConfigError(
            f"the storage has a study {study.study_name!r} that sglk did not make; choose another study.name=..."
        )
    changes = differences(known, identity) if known is not None else []
    if changes:
        raise ConfigError(
            f"study {study.study_name!r} was made for something else ({'; '.join(changes)}); "
            "go back to that, or start a new study with study.name=..."
        )
    study.set_user_attr(IDENTITY, identity)
