"""Reasons not to trust a tuned profile: it was measured for something else, long ago, or changed since."""

from collections.abc import Iterator
from datetime import date, datetime, timezone
from pathlib import Path

import yaml

from sglk import __version__
from sglk.config.check_engine import ENGINES
from sglk.config.model_argument import tune_command
from sglk.config.profiles import content_hash, engine_range
from sglk.config.provenance import SCHEMA_VERSION, ProfileRecord
from sglk.config.schema import ServeConfig


def today() -> date:
    """Return the day by which profiles are dated, the same all over the world."""
    return datetime.now(timezone.utc).date()


def doubts(file: Path, config: ServeConfig, today: date) -> list[str]:
    """Return a line for each reason to doubt that the profile in `file`, part of `config`, is what `config` needs."""
    if config.profile is None:
        return []
    tune = tune_command(config)
    return [f"profile {file} {reason}" for reason in _reasons(file, config.profile, config, today, tune)]


def _reasons(file: Path, profile: ProfileRecord, config: ServeConfig, today: date, tune: str) -> Iterator[str]:
    if profile.schema_version != SCHEMA_VERSION:
        yield f"has schema version {profile.schema_version}, this sglk reads {SCHEMA_VERSION}; make a new one: {tune}"
    named = (("chip", profile.chip.name, config.chip.name), ("model", profile.model.name, config.model.name))
    for group, measured, used in named:
        # A profile written by hand need not say what it is for.
        if measured not in ("?", used):
            yield f"was measured with {group} {measured!r}, not {used!r}; make one for it: {tune}"
    tuned_for = (profile.engine or "").partition(" ")[0]
    if tuned_for in ENGINES and tuned_for != config.engine.name:
        yield f"was tuned for engine={tuned_for}, not {config.engine.name}; make one for it: {tune}"
    simulating = (profile.engine or "").endswith(f" on {config.backend.name}")
    if profile.kind == "simulated" and not simulating:
        yield f"was simulated, not measured on the chip; measure it: {tune}"
    # The command that found the profile also renews it: its study is at hand more often than not.
    renew = " ".join((profile.command or tune).split())
    yield from _age(profile.expires, today, renew)
    yield from _version(profile.valid_engine, renew)
    if profile.hash is not None and profile.hash != content_hash(yaml.safe_load(file.read_text(encoding="utf-8"))):
        yield f"was changed after it was measured (its hash does not fit); measure it again: {tune}"


def _age(expires: str | None, today: date, renew: str) -> Iterator[str]:
    if expires is None:
        return
    try:
        last = date.fromisoformat(expires[:10])
    except ValueError:
        yield f"has expires={expires!r}, which is not a date; write it as {today.isoformat()}"
        return
    if last < today:
        yield f"expired on {last.isoformat()}; measure it again: {renew}"


def _version(valid: str | None, renew: str) -> Iterator[str]:
    if valid is None or valid == engine_range(__version__):
        return
    # Of the few profiles that come this far alone: the import takes longer than all the rest of this file.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        holds = SpecifierSet(valid).contains(__version__, prereleases=True)
    except InvalidSpecifier:
        yield f"has valid_engine={valid!r}, which is no range of versions; write it as {engine_range(__version__)!r}"
        return
    if not holds:
        yield f"holds for sglk {valid}, and this is {__version__}; measure it again: {renew}"
