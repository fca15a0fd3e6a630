"""The whole of `sglk tune` for one composed configuration."""

import dataclasses
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from sglk.bench.run import Progress
from sglk.bench.target import LaunchedServer
from sglk.commands.terminal import console as terminal
from sglk.config.compose import Composed
from sglk.config.sources import inherited_runtime
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError, RunError
from sglk.upstream.fit import fitted
from sglk_tuner import finding
from sglk_tuner.carried import other_study, settings_of
from sglk_tuner.closing import Closing
from sglk_tuner.display import Display, plan_text, result_table, setting
from sglk_tuner.engine import Engine, Launch
from sglk_tuner.identity import identity_of
from sglk_tuner.measurement import launcher, measurer
from sglk_tuner.objective import goals_of
from sglk_tuner.profile import Finding, ProfileStays
from sglk_tuner.proposals import Proposals
from sglk_tuner.session import Session
from sglk_tuner.simulated import imagine, simulator
from sglk_tuner.space import build_space, params_of
from sglk_tuner.study import Study, check_folder, open_study, study_name
from sglk_tuner.summary import StudySummary
from sglk_tuner.trial import Bench, Measure

INTERRUPTED = 130


def tune(composed: Composed[TuneConfig], config_dir: str | None, words: list[str], command: str, dry_run: bool) -> int:
    """Run, or resume, the study and write the winner's profile; returns the exit code.

    `words` are the overrides that were typed, `command` is the whole line as records may show it.
    Raises RunError when no setting completed, ConfigError for what cannot be searched.
    """
    config, left_out = fitted(_effective(composed.config), inherited_runtime(composed.sources))
    goals, space = goals_of(config), build_space(config)
    default = params_of(config, space.candidates)
    notices = [*left_out, *space.notices]
    other = other_study(config.search.start_from, Path(config.study.directory) / study_name(config), notices)
    proposals = Proposals(space, default, goals, config.search, settings_of(other))
    console = terminal()
    for notice in [*notices, *proposals.notices, *_carried(other, proposals)]:
        console.print(notice, highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        console.print(plan_text(config, space, proposals), highlight=False, markup=False, soft_wrap=True)
        return 0
    defaults = finding.defaults_of(composed, config_dir)
    finding.check_profile_path(config)
    check_folder(config)
    identity = identity_of(config, space, goals, default)
    with open_study(config, space, goals, default, identity) as study:
        display = Display(console, proposals, study, bar=config.bench.progress)
        launch, measure = _means(composed, config_dir, study, display, command)
        with display, Engine(config, launch, study.folder) as engine:
            session = Session(config, study, proposals, Bench(config, engine, measure, goals, study.folder), display)
            closing = _result(session, study, display)
        if closing is None:
            return INTERRUPTED
        try:
            if config.study.save_profile:
                session.profile = _save(config, finding.find(config, study, closing, defaults), display)
        finally:
            _publish(session, display, "finished")
            display.note(closing.verdict)
        if session.profile is not None and Path(config.study.profiles).resolve() == Path("profiles").resolve():
            display.note(f"next: {_serve_command(words, config_dir)}")
        display.note(f"compare: sglk report {study.folder}")
    return 0


def _means(
    composed: Composed[TuneConfig], config_dir: str | None, study: Study, display: Display, command: str
) -> tuple[Launch[Any], Measure[Any]]:
    """Return how to start a server with a setting, or what stands for one, and how to measure it."""
    if composed.config.study.simulate:
        return imagine, simulator(composed, config_dir, command)

    def on_progress(progress: Progress) -> None:
        display.requests(progress.phase, progress.done, progress.total)

    def on_start(server: LaunchedServer) -> None:
        study.write("device", (server.server_info() or {}).get("device"))

    return launcher(composed, config_dir, list(study.space.candidates), on_start), measurer(on_progress, command)


def _result(session: Session[Any], study: Study, display: Display) -> Closing | None:
    """Run the session and return its result, None = it was interrupted; however it ends, its books are published."""
    try:
        return session.run()
    except KeyboardInterrupt:
        try:
            study.close_ghosts()
            summary = _publish(session, display, "interrupted")
        except RunError as error:
            display.note(f"interrupted; {error}")
            return None
        display.note(
            f"interrupted after {summary.done} of {summary.planned} settings; the same command goes on from here"
        )
        return None
    except BrokenPipeError:
        # Nobody can be shown how it goes; what was measured stays, and the same command goes on from there.
        with suppress(RunError):
            study.close_ghosts()
            session.publish("interrupted")
        raise
    except OSError:
        with suppress(RunError):
            study.close_ghosts()
        # The table may be what cannot be written.
        with suppress(RunError, OSError):
            _publish(session, display, "failed")
        raise
    except RunError:
        # The cause is what the user has to know, not that the books suffer from it too.
        with suppress(RunError):
            _publish(session, display, "failed")
        raise


def _effective(config: TuneConfig) -> TuneConfig:
    """Return the configuration with the objective's limits in force for goodput."""
    if config.bench.url is not None:
        raise ConfigError("`sglk tune` starts its own server; leave out bench.url")
    limits, given = config.objective.slo, dataclasses.asdict(config.bench.slo)
    if not any(dataclasses.asdict(limits).values()):
        return config
    for name, limit in given.items():
        if limit not in (None, getattr(limits, name)):
            raise ConfigError(
                f"bench.slo.{name}={limit:g} has no effect where the objective has limits of its own; write"
                f" objective.slo.{name}={limit:g}"
            )
    return dataclasses.replace(config, bench=dataclasses.replace(config.bench, slo=limits))


def _carried(other: StudySummary | None, proposals: Proposals) -> list[str]:
    if other is None:
        return []
    found = "; ".join(map(setting, proposals.carried)) or "which this space has not, or as the default"
    return [f"first come the best settings of study {other.study} ({other.kind} on {other.chip}): {found}"]


def _publish(session: Session[Any], display: Display, status: str) -> StudySummary:
    """Show the study as it stands, and write it down: neither is kept from it by the other's trouble."""
    try:
        display.result(result_table(session.summary(status)))
    finally:
        summary = session.publish(status)
    return summary


def _save(config: TuneConfig, found: Finding, display: Display) -> str | None:
    try:
        path, kept, written = finding.save(found, config)
    except ProfileStays as error:
        display.note(str(error))
        return None
    if kept is not None:
        display.note(f"the profile that was there is kept as {kept}")
    display.note(f"profile {'written to' if written else 'unchanged:'} {path}")
    return str(path)


def _serve_command(words: list[str], config_dir: str | None) -> str:
    named = [word for word in words if finding.names_deployment(word)]
    return shlex.join(["sglk", "serve", *(["--config-dir", config_dir] if config_dir else []), *named])
