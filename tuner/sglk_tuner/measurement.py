"""How a study measures: `sglk serve` as a child, driven by the benchmark of `sglk bench`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglk.bench.run import Progress, Subject, measure
from sglk.bench.target import LaunchedServer, override_key
from sglk.config.compose import Composed
from sglk.config.quoting import quoted
from sglk.config.tune_schema import TuneConfig
from sglk.planner.placement import AUTOMATIC, TP_SIZE, place
from sglk_tuner.engine import Launch
from sglk_tuner.space import LIVE_KEYS, ROOT, Params, params_of
from sglk_tuner.trial import Measure

OnStart = Callable[[LaunchedServer], None]


def launcher(
    composed: Composed[TuneConfig], config_dir: str | None, keys: list[str], on_start: OnStart
) -> Launch[LaunchedServer]:
    """Return how to start a server; `keys` are those of the space, `on_start` sees each new server."""
    # A profile would bring settings of its own below the ones that a trial sets.
    profiles = composed.choices.get("profiles", "none")
    given = [override for override in composed.overrides if override_key(override) != "profiles"]

    def launch(config: TuneConfig, log: Path) -> LaunchedServer:
        server = LaunchedServer(
            [*given, quoted("profiles", profiles), *_devices(composed, config), *overrides_of(params_of(config, keys))],
            log=log,
            config_dir=config_dir,
            timeout_s=config.study.start_timeout_s,
            api_key=config.server.api_key,
            admin_api_key=config.server.admin_api_key,
        )
        try:
            on_start(server)
        except BaseException:
            server.close()
            raise
        return server

    return launch


def _devices(composed: Composed[TuneConfig], config: TuneConfig) -> list[str]:
    """Return the override that states how many devices a trial runs on, where the user does not.

    What changes without a restart counts as it is in the study's own configuration: a server that lives on keeps its
    devices, so a trial must not depend on those before it.
    """
    if composed.names_devices or not composed.sources[TP_SIZE].startswith(AUTOMATIC):
        return []
    own = composed.config.runtime
    live = {key.removeprefix(ROOT): getattr(own, key.removeprefix(ROOT)) for key in LIVE_KEYS}
    trial = replace(config, runtime=replace(config.runtime, **live, tp_size=None))
    return [f"{TP_SIZE}={place(replace(composed, config=trial)).composed.config.runtime.tp_size}"]


def measurer(on_progress: Callable[[Progress], None], command: str) -> Measure[LaunchedServer]:
    """Return how to measure a server; `command` is what the records name as their origin."""

    def run(target: LaunchedServer, config: TuneConfig, name: str) -> Any:
        subject = Subject(
            chip=config.chip.name,
            model=config.model.name,
            engine=config.engine.name,
            backend=config.backend.name,
            vocab_size=config.model.vocab_size,
        )
        return measure(
            target,
            config.workload,
            config.bench,
            subject=subject,
            session_header=config.router.session_header,
            salt=f"{config.workload.seed}:{name}",
            command=command,
            on_progress=on_progress,
        )

    return run


def overrides_of(params: Params) -> list[str]:
    """Return a setting as overrides of `sglk serve`."""
    return [_override(key, value) for key, value in params.items()]


def _override(key: str, value: object) -> str:
    assert key.startswith(ROOT)
    if value is None:
        return f"{key}=null"
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return quoted(key, value) if isinstance(value, str) else f"{key}={value}"
