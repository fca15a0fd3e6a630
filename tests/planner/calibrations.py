"""Calibration files of made-up machines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sglk.planner.calibration import find
from sglk.planner.calibration.entries import installed_versions
from sglk.planner.calibration.find import file_name, this_machine
from sglk.planner.calibration.fit import fit
from sglk.planner.calibration.record import Calibration, Entry, PointRecord, ServingPoint, ServingRecord
from sglk.planner.cost.calibrated import HostTime
from tests.planner import machines


def entry(**changes: Any) -> Entry:
    """Return SmolLM2's on the machine of known prices."""
    points = machines.measured(0.0)
    found, way = fit(points, machines.features()), machines.way()
    whole = Entry(
        model=way.model,
        numbers=way.numbers,
        backend="cpu",
        dtype="fp32",
        kv_cache_dtype="fp32",
        quantization=None,
        tp_size=1,
        num_threads=None,
        kind="measured",
        created="2026-11-29T00:00:00+00:00",
        command="sglk calibrate",
        versions=installed_versions(),
        providers={"linear": "cpu"},
        form=found.form,
        largest_tokens=found.largest_tokens,
        largest_lines=found.largest_lines,
        prices=found.prices,
        error=found.error,
        error_by_kind=found.by_kind,
        points=[PointRecord.of(point) for point in points[:3]],
        serving=ServingRecord(HostTime(0.001, 0.0001), 0.004, points=[ServingPoint(1, 0.01, 0.001, 4, 0.0005)]),
    )
    return replace(whole, **changes)


def write(*entries: Entry, chip: str = "cpu", cores: int | None = None) -> Path:
    machine = this_machine("AMD EPYC 9000 64-Core Processor", 2)
    if cores is not None:
        machine = replace(machine, cores=cores)
    path = find.FOLDER / file_name(chip, machine)
    Calibration(chip, machine, list(entries)).save(path)
    return path
