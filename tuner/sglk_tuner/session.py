"""One run of `sglk tune` over its study: trial after trial until the budget is spent, then the closing comparison."""

from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Generic, Protocol

from sglk.config.tune_schema import TuneConfig
from sglk.errors import RunError
from sglk_tuner.choice import pareto_front, ranking, rule_of, unmet_goal
from sglk_tuner.closing import Closing, close
from sglk_tuner.engine import T
from sglk_tuner.outcome import Outcome
from sglk_tuner.proposals import Proposal, Proposals, tried
from sglk_tuner.space import Params
from sglk_tuner.study import Study
from sglk_tuner.summary import StudySummary, TrialSummary, write_summary
from sglk_tuner.trial import Bench

HOPELESS = 3
"""So many failed starts with one and the same message end the session."""


class Watcher(Protocol):
    """Whoever shows the session to the user."""

    def note(self, text: str) -> None:
        """Say one line."""

    def begin(self, number: int, proposal: Proposal) -> None:
        """A trial starts."""

    def end(self, trial: TrialSummary, summary: StudySummary) -> None:
        """A trial has ended."""

    def again(self, params: Params, name: str) -> None:
        """A setting is measured again for the closing comparison."""


class Session(Generic[T]):
    """Runs a study on this process's engine and keeps `summary.json` up to date."""

    def __init__(
        self, config: TuneConfig, study: Study, proposals: Proposals, bench: Bench[T], watcher: Watcher
    ) -> None:
        self._config = config
        self._study = study
        self._proposals = proposals
        self._bench = bench
        self._watcher = watcher
        self._closing: Closing | None = None
        self._refusals: list[str] = []
        self._said: set[str] = set()
        self._known_origin: tuple[str, str | None] | None = None
        self.profile: str | None = None
        """Path of the profile, once it is written."""

    def run(self) -> Closing:
        """Measure what is left of the study, compare winner and default, and return the result.

        Raises RunError when nothing completed; KeyboardInterrupt passes through, with the study ready to be resumed.
        """
        for ghost in self._study.close_ghosts():
            self._watcher.note(f"trial {ghost} was left running by a process that is gone; its setting runs once more")
        first = len(self._study.trials())
        self.publish("running")
        while True:
            proposal = self._proposals.next(self._study.trials(), self._study.lost(), first)
            if proposal is None:
                break
            self._give_up_if_hopeless(self._run(proposal))
        self._closing = close(self._study, self._again, self._config.study.repeats, self._watcher.note)
        return self._closing

    def publish(self, status: str) -> StudySummary:
        """Write `summary.json` as things stand and return it.

        Raises RunError where it cannot be written, or is by now that of a process that took the study over.
        """
        self._study.stay()
        summary = self.summary(status)
        write_summary(summary, self._study.folder)
        return summary

    def _run(self, proposal: Proposal) -> Outcome:
        number = self._study.begin(proposal.params, proposal.source)
        self._watcher.begin(number, proposal)
        prunes = self._config.search.pruner != "none" and proposal.source != "default"
        try:
            outcome = self._bench.run(
                proposal.params,
                f"trials/{number:03d}",
                (lambda value: self._study.should_prune(number, value)) if prunes else None,
            )
        except KeyboardInterrupt:
            # Whoever closes the books meets their trouble once more, and tells it.
            with suppress(RunError):
                self._study.finish(number, Outcome("FAIL", reason="interrupted", lost=True))
            raise
        self._study.finish(number, outcome)
        summary = self.publish("running")
        self._watcher.end(next(trial for trial in summary.trials if trial.number == number), summary)
        for warning in outcome.warnings:
            if warning not in self._said:
                self._said.add(warning)
                self._watcher.note(f"trial {number}: {warning}")
        return outcome

    def _give_up_if_hopeless(self, outcome: Outcome) -> None:
        """Stop when the server refuses to start again and again for one reason, which then is not the setting's."""
        reason = str(outcome.reason).partition(" (log: ")[0]
        self._refusals = [*self._refusals, reason] if outcome.never_started else []
        if len(self._refusals) >= HOPELESS and len(set(self._refusals)) == 1:
            raise RunError(
                f"the server did not start for {HOPELESS} settings in a row, always with: {reason}; "
                "mend that and run again with search.retry_failed=true"
            )

    def _again(self, params: Params, name: str) -> Outcome:
        self._study.keep()
        self._watcher.again(params, name)
        return self._bench.run(params, name)

    def summary(self, status: str) -> StudySummary:
        """Return the study as it stands."""
        config, study, space = self._config, self._study, self._study.space
        trials = study.trials()
        waiting = self._proposals.waiting(trials, study.lost())
        order = ranking(study.goals, trials, study.default)
        _mark(order, pareto_front(study.goals, trials))
        kind, device = self._origin(trials)
        default = [trial.number for trial in trials if trial.params == study.default]
        best = order[0].number if order and not unmet_goal(study.goals, trials) else None
        return StudySummary(
            study=study.name,
            status=status,
            created=study.created,
            updated=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            kind=kind,
            chip=config.chip.name,
            device=device,
            model=config.model.name,
            engine=config.engine.name,
            workload=config.workload.name,
            objective=config.objective.name,
            goals=[{"metric": goal.metric, "direction": goal.direction} for goal in study.goals],
            slo={"ttft_s": config.bench.slo.ttft_s, "tpot_s": config.bench.slo.tpot_s, "e2e_s": config.bench.slo.e2e_s},
            space={key: list(values) for key, values in space.candidates.items()},
            space_hash=space.hash,
            sampler=config.search.sampler,
            seed=config.search.seed,
            impossible=[{"params": point.params, "reason": point.reason} for point in space.impossible],
            planned=self._proposals.planned,
            done=len(tried(trials, study.lost())),
            trials=trials + [TrialSummary(None, "WAITING", config.search.sampler, point) for point in waiting],
            baseline=default[-1] if default else None,
            winner=self._closing.chosen if self._closing else best,
            rule=rule_of(study.goals),
            closing=asdict(self._closing) if self._closing else None,
            profile=self.profile,
        )

    def _origin(self, trials: list[TrialSummary]) -> tuple[str, str | None]:
        """Return whether the study is measured or simulated, and on what device, from its first record."""
        first = next((trial.record for trial in trials if trial.record), None)
        if self._known_origin is None and first is not None:
            record = self._study.record(first)
            self._known_origin = (record.kind, record.server.device or record.machine.cpu)
        return self._known_origin or ("unknown", None)


def _mark(order: list[TrialSummary], front: list[TrialSummary]) -> None:
    for place, trial in enumerate(order, 1):
        trial.rank = place
    for trial in front:
        trial.pareto = True
