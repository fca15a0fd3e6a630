"""From a deployment to the prices of its steps: load the model, measure, fit."""

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import import_module
from itertools import chain

from sglk.config.calibrate_schema import CalibrateConfig, CalibrationConfig
from sglk.config.environment import prepare_environment
from sglk.config.groups import SIMULATED
from sglk.engine.batch import Runner
from sglk.planner.calibration.batches import Pool
from sglk.planner.calibration.design import Reach, families
from sglk.planner.calibration.entries import Way, installed_versions
from sglk.planner.calibration.find import this_machine
from sglk.planner.calibration.fit import fit
from sglk.planner.calibration.fitted import Fit, Point
from sglk.planner.calibration.measure import Clock, Effort, OnStep, measure_steps
from sglk.planner.calibration.record import Entry, Machine, PointRecord


@dataclass(frozen=True)
class Measured:
    """The steps of one model on one device, and the prices that follow."""

    machine: Machine
    entry: Entry
    fit: Fit
    points: list[Point]


def measure_model(config: CalibrateConfig, command: str, on_step: OnStep = lambda done, total: None) -> Measured:
    """Load the model of `config` and measure its steps; a simulated device says itself what they take.

    Raises any SglkError: what device or model refuse, too few steps, a step that fails.
    """
    way, config = Way.of(config), _at_once(config)
    prepare_environment(config.backend)
    # By name: the planner does without torch until something is measured.
    runner, _ = import_module("sglk.engine.loading").load_runner(config)
    try:
        points = _points(runner, config, on_step)
        info, providers = runner.device_info, _providers(runner)
    finally:
        runner.close()
    found = fit(points, way.features)
    machine = this_machine(info["name"], _devices(way, info))
    return Measured(machine, _entry(config, way, found, points, info, providers, command), found, points)


def _at_once(config: CalibrateConfig) -> CalibrateConfig:
    """Let nobody wait for a simulated device: its own clock is read."""
    if config.backend.name != SIMULATED:
        return config
    return replace(config, backend=replace(config.backend, options={**config.backend.options, "speed": 0}))


def _points(runner: Runner, config: CalibrateConfig, on_step: OnStep) -> list[Point]:
    runtime, settings = config.runtime, config.calibrate
    capacity = runner.kv_capacity_tokens(runtime) // runtime.page_size * runtime.page_size
    context_length = min(runner.context_length, runtime.context_length or runner.context_length)
    reach = Reach.of(runtime, context_length, capacity, settings.context_length)
    shapes = families(reach)
    pool = Pool.for_shapes(chain.from_iterable(shapes), runtime.page_size, runner.vocab_size)
    runner.allocate_kv(pool.pages, pool.page_size)
    return measure_steps(runner, shapes, pool, _effort(settings), _clock(runner), on_step)


def _effort(settings: CalibrationConfig) -> Effort:
    return Effort(settings.repeats, settings.longest_step_s, settings.time_s)


def _clock(runner: Runner) -> Clock:
    """Return what tells the time of the device: its own clock where it is simulated, else the host's."""
    clock = getattr(getattr(runner, "backend", None), "clock", None)
    return time.perf_counter if clock is None else lambda: float(clock.busy_s)


def _devices(way: Way, info: Mapping[str, str]) -> int:
    """Return how many cores or cards the model ran on."""
    return int(info.get("threads", way.tp_size))


def _providers(runner: Runner) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for choice in runner.op_report().choices:
        found.setdefault(choice.op, set()).add(choice.provider)
    return {op: " and ".join(sorted(names)) for op, names in sorted(found.items())}


def _entry(
    config: CalibrateConfig,
    way: Way,
    found: Fit,
    points: list[Point],
    info: Mapping[str, str],
    providers: dict[str, str],
    command: str,
) -> Entry:
    software = {name: info[name] for name in ("sdk", "driver") if name in info}
    return Entry(
        model=way.model,
        numbers=way.numbers,
        backend=way.backend,
        dtype=way.dtype,
        kv_cache_dtype=way.kv_cache_dtype,
        quantization=way.quantization,
        tp_size=way.tp_size,
        num_threads=way.num_threads,
        kind="simulated" if info.get("simulated") == "true" else "measured",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
        versions=installed_versions() | {"python": platform.python_version()} | software,
        providers=providers,
        form=found.form,
        largest_tokens=found.largest_tokens,
        largest_lines=found.largest_lines,
        prices=found.prices,
        error=found.error,
        error_by_kind=found.by_kind,
        points=[PointRecord.of(point) for point in points],
        gathers=way.gathers if way.tp_size > 1 else None,
        weight_bits=way.weight_bits,
        settings=way.settings,
    )
