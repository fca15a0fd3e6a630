"""One trial: put a setting in force, measure it, and say what became of it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Generic

from sglk.bench.record import Record
from sglk.config.bench_schema import WorkloadConfig
from sglk.config.tune_schema import TuneConfig
from sglk.errors import SglkError
from sglk_tuner.engine import Engine, T
from sglk_tuner.objective import Goal, NoValue, values_of
from sglk_tuner.outcome import Outcome
from sglk_tuner.space import Params, apply

Measure = Callable[[T, TuneConfig, str], Record]
"""Run a workload against a server under a configuration; the text salts the prompts where the cache asks for it."""

PROBE_SHARE = 4
"""A probe sends this fraction (1/4) of the workload's requests."""


class Prune(Exception):
    """A probe shows that the setting cannot win."""


class Bench(Generic[T]):
    """Measures settings on the study's engine."""

    def __init__(
        self, config: TuneConfig, engine: Engine[T], measure: Measure[T], goals: tuple[Goal, ...], folder: Path
    ) -> None:
        self._config = config
        self._engine = engine
        self._measure = measure
        self._goals = goals
        self._folder = folder

    def run(self, params: Params, name: str, should_prune: Callable[[float], bool] | None = None) -> Outcome:
        """Measure one setting and keep its record as `<name>.json` in the study's folder.

        `should_prune` is asked after a short probe, with the value of the only goal, whether to give up. Whatever the
        engine does wrong becomes a failed outcome with its reason; the next setting then gets a new engine.
        """
        try:
            target = self._engine.prepare(params)
        except SglkError as error:
            return self._failed(error)
        try:
            with self._engine.deadline(self._config.study.trial_timeout_s, "study.trial_timeout_s"):
                if should_prune is not None:
                    self._probe(target, params, name, should_prune)
                record = self._measure(target, apply(self._config, params), name)
        except Prune as prune:
            return Outcome("PRUNED", reason=str(prune), log=self._engine.log)
        except SglkError as error:
            outcome = self._failed(error)
            self._engine.close()
            return outcome
        path = f"{name}.json"
        record.save(self._folder / path)
        if record.valid:
            return self._judge(record, path)
        # Whatever made requests fail may outlast the setting.
        reason = self._engine.cause_of_death() or _failures(record)
        self._engine.close()
        return Outcome("FAIL", reason=reason, record=path, log=self._engine.log)

    def _failed(self, error: SglkError) -> Outcome:
        death = self._engine.cause_of_death()
        if death is not None:
            self._engine.close()
        never_started = not self._engine.has_started
        return Outcome("FAIL", reason=death or str(error), log=self._engine.log, never_started=never_started)

    def _probe(self, target: T, params: Params, name: str, should_prune: Callable[[float], bool]) -> None:
        config = apply(self._config, params)
        probe = dataclasses.replace(config, workload=_part(config.workload))
        try:
            (value,) = values_of(self._goals, self._measure(target, probe, f"{name}-probe").summary)
        except NoValue:
            return
        if should_prune(value):
            raise Prune(f"a probe of {probe.workload.num_requests} requests gave {self._goals[0].metric}={value:.4g}")

    def _judge(self, record: Record, path: str) -> Outcome:
        try:
            values = values_of(self._goals, record.summary)
        except NoValue as error:
            return Outcome("FAIL", reason=str(error), record=path, log=self._engine.log)
        counts = record.counts
        # Shorter answers are another workload: its figures would beat those of settings that do the whole work.
        if counts.short > record.load.max_failure_rate * counts.requests:
            reason = f"{counts.short} of {counts.requests} answers are shorter than asked"
            return Outcome("FAIL", reason=reason, record=path, log=self._engine.log)
        return Outcome("COMPLETE", values, record=path, log=self._engine.log, warnings=tuple(record.warnings))


def _part(workload: WorkloadConfig) -> WorkloadConfig:
    """Return the probe of a workload: fewer requests, but enough to fill its concurrency."""
    count = max(workload.num_requests // PROBE_SHARE, min(workload.concurrency, workload.num_requests), 1)
    return dataclasses.replace(workload, num_requests=count)


def _failures(record: Record) -> str:
    counts, limit = record.counts, record.load.max_failure_rate
    bad = counts.failed + counts.timeout
    first = next((request.error for request in record.requests if request.error), None)
    why = f"; first: {first}" if first else ""
    return (
        f"{bad} of {counts.requests} requests failed ({counts.timeout} timed out), more than "
        f"bench.max_failure_rate={limit:g} allows{why}"
    )
