"""Trials on the virtual clock: every setting is simulated, and no server runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sglk.bench.record import Record
from sglk.config.compose import Composed
from sglk.config.tune_schema import TuneConfig
from sglk.planner.placement import place
from sglk.simulation.run import simulate
from sglk_tuner.trial import Measure


class Simulation:
    """What a study has in place of a server: nothing is kept from one trial to the next."""

    def reconfigure(self, runtime: dict[str, Any]) -> None:
        """Return at once: each trial brings its whole configuration."""

    def check(self) -> None:
        """Return at once: nothing can have ended."""

    def close(self) -> None:
        """Return at once: nothing runs."""


def imagine(config: TuneConfig, log: Path) -> Simulation:
    """Return the stand-in; whatever is wrong with a setting shows when it is simulated."""
    return Simulation()


def simulator(composed: Composed[TuneConfig], config_dir: str | None, command: str) -> Measure[Simulation]:
    """Return how to simulate a setting; `command` is what the records name as their origin."""

    def run(target: Simulation, config: TuneConfig, name: str) -> Record:
        placed = place(replace(composed, config=config), config_dir, elsewhere=True)
        return simulate(config, placed.replicas, calibration=config.calibration, command=command)

    return run
