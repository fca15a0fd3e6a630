"""From a finished study to its profile file."""

from collections import Counter
from pathlib import Path

from sglk import atomic_file
from sglk.bench.target import override_key
from sglk.config.compose import Composed, compose
from sglk.config.profiles import content_hash, profile_file
from sglk.config.provenance import ProfileSearch
from sglk.config.schema import RuntimeConfig
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError, RunError
from sglk.planner.placement import place
from sglk_tuner.choice import rule_of
from sglk_tuner.closing import Closing, records_of
from sglk_tuner.profile import Finding, build_profile, read_profile, write_profile
from sglk_tuner.space import apply
from sglk_tuner.study import Study

DEPLOYMENT = ("chip", "model", "backend", "engine")
"""Groups that name what a profile is for; everything else a user typed belongs into the profile's delta."""


def find(config: TuneConfig, study: Study, closing: Closing, defaults: RuntimeConfig) -> Finding:
    """Collect what the profile says from the study's books and records."""
    trials = study.trials()
    chosen, baseline = trials[closing.chosen], trials[closing.default]
    return Finding(
        config=apply(config, chosen.params),
        defaults=defaults,
        records=records_of(study, closing, chosen),
        baseline=records_of(study, closing, baseline) if baseline.state == "COMPLETE" else [],
        baseline_failure=baseline.reason,
        search=ProfileSearch(
            study=study.name,
            sampler=config.search.sampler,
            seed=config.search.seed,
            space_hash=study.space.hash,
            trials=dict(sorted(Counter(trial.state for trial in trials).items())),
            rule=rule_of(study.goals),
        ),
        objective=", ".join(map(str, study.goals)),
        # A challenger that lost promises nothing: the profile serves the default.
        gain=closing.gain if closing.accepted else {},
        verdict=closing.verdict,
        device=study.read("device") or {},
    )


def defaults_of(composed: Composed[TuneConfig], config_dir: str | None) -> RuntimeConfig:
    """Return the runtime values that the deployment has with nothing else typed and no profile."""
    named = [override for override in composed.overrides if names_deployment(override)]
    return place(compose("serve", [*named, "profiles=none"], config_dir), config_dir).composed.config.runtime


def names_deployment(override: str) -> bool:
    """Tell whether an override, however it is written, says what a profile is for."""
    return override_key(override).partition(".")[0] in DEPLOYMENT


def save(finding: Finding, config: TuneConfig) -> tuple[Path, Path | None, bool]:
    """Write the profile; return its path, where an older one is kept, and whether anything had to be written.

    Raises ProfileStays when the old one is the better one, RunError when the file cannot be read or written.
    """
    path = profile_path(config)
    content = build_profile(finding)
    if _holds(path, content["profile"]["hash"]):
        return path, None, False
    return path, write_profile(content, path), True


def profile_path(config: TuneConfig) -> Path:
    """Return where the study's profile goes."""
    return profile_file(config.study.profiles, config.chip.name, config.model.name, config.engine.name)


def check_profile_path(config: TuneConfig) -> None:
    """Raise ConfigError when the profile could not be written; better now than after hours of measuring."""
    path = profile_path(config)
    obstacle = atomic_file.obstacle(path) if config.study.save_profile else None
    if obstacle is not None:
        raise ConfigError(
            f"study.profiles={config.study.profiles!r}: cannot write '{path}': {obstacle}; "
            "name another folder or set study.save_profile=false"
        )


def _holds(path: Path, digest: str) -> bool:
    try:
        return path.exists() and content_hash(read_profile(path)) == digest
    except RunError:
        return False
