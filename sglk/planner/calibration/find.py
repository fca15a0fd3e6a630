"""Which calibration prices are taken from: the caller's choice, or those in `./calibration`."""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sglk.backends.processor import processor_name, usable_cores
from sglk.errors import ConfigError
from sglk.planner.calibration.entries import ON_THIS_MACHINE, Way
from sglk.planner.calibration.record import Calibration, Entry, Machine, read

FOLDER = Path("calibration")

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Found:
    """An entry that prices can be taken from."""

    path: Path
    entry: Entry
    notes: tuple[str, ...]
    """Why they may not hold, each one line."""


@dataclass(frozen=True)
class Search:
    """What came of a search."""

    found: Found | None
    passed_over: tuple[str, ...]
    """Files that were not taken, and why."""


def this_machine(device: str, devices: int) -> Machine:
    """Return this machine, with the device that steps run on."""
    return Machine(device, devices, processor_name(), usable_cores(), platform.platform())


def file_name(chip: str, machine: Machine) -> str:
    """Return `<chip>-<machine>.json`, which people can read."""
    words = re.sub(r"\((?:r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", machine.device.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "unknown"
    return f"{chip}-{slug}-x{machine.devices}.json"


def find_calibration(chip: str, way: Way, choice: str = AUTO) -> Search:
    """Return the entry that fits `way` best, None where there is none or `choice` is `none`.

    A file that is named has to be of this chip and to have an entry that says something, a folder that is named to
    have files, or ConfigError is raised; of its files those of other chips are left alone. Either is taken whatever
    machine it was made on. Of those that lie about, the ones of another machine are passed over.
    """
    if choice == NONE:
        return Search(None, ())
    named = Path(choice)
    if choice != AUTO and not named.is_dir():
        return Search(_of_file(named, chip, way), ())
    if choice != AUTO and not files_in(named):
        raise ConfigError(
            f"there is no calibration in the folder {choice!r}; name a file or a folder of `sglk calibrate`, or write "
            "calibration=none"
        )
    passed_over: list[str] = []
    folder = FOLDER if choice == AUTO else named
    found = list(_of_folder(folder, chip, way, passed_over, anywhere=choice != AUTO))
    return Search(min(found, key=lambda each: len(each.notes), default=None), tuple(passed_over))


def files_in(folder: Path, chip: str | None = None) -> list[Path]:
    """Return the calibrations of a folder, or those of one chip; ConfigError where it cannot be looked into."""
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"cannot read the folder {str(folder)!r} of calibrations: Permission denied")
    return sorted(folder.glob("*.json" if chip is None else f"{chip}-*.json"))


def _of_folder(folder: Path, chip: str, way: Way, passed_over: list[str], *, anywhere: bool) -> Iterator[Found]:
    for path in files_in(folder, chip):
        calibration = read(path)
        if calibration.chip != chip or all(entry.backend != way.backend for entry in calibration.entries):
            continue
        why, best = _elsewhere(calibration, way), _best(path, calibration, way)
        if why is not None and not anywhere:
            passed_over.append(f"{path} {why}; calibration={path} takes it all the same")
        elif best is None:
            passed_over.append(f"{path} has no entry for {_asked(way)}; it has {_entries(calibration)}")
        else:
            yield best


def _of_file(path: Path, chip: str, way: Way) -> Found:
    calibration = read(path)
    if calibration.chip != chip:
        raise ConfigError(
            f"calibration {str(path)!r} is of chip {calibration.chip!r}, not of {chip!r}; name its folder where "
            "several chips are at work, or write calibration=none"
        )
    best = _best(path, calibration, way)
    if best is None:
        raise ConfigError(
            f"calibration {str(path)!r} has no entry for {_asked(way)}, only for {_entries(calibration)}; "
            "run `sglk calibrate` with the same settings, or write calibration=none"
        )
    return best


def _elsewhere(calibration: Calibration, way: Way) -> str | None:
    """Return why the file is not of this machine, as far as that can be known without a device."""
    made = calibration.machine
    if way.backend != ON_THIS_MACHINE:
        return None
    here = processor_name(), usable_cores()
    if (made.cpu, made.cores) == here:
        return None
    return f"was made on {made.cpu} with {made.cores} cores, and this is {here[0]} with {here[1]}"


def _best(path: Path, calibration: Calibration, way: Way) -> Found | None:
    elsewhere = _elsewhere(calibration, way)
    notes = () if elsewhere is None else (f"it {elsewhere}",)
    fitting = [
        Found(path, entry, (*notes, *way.differences(entry))) for entry in calibration.entries if way.takes(entry)
    ]
    return min(fitting, key=lambda found: (len(found.notes), way.times_as_large(found.entry)), default=None)


def _asked(way: Way) -> str:
    return f"{_words(way)} and a model of about the size of {way.model}"


def _entries(calibration: Calibration) -> str:
    return ", ".join(dict.fromkeys(f"{entry.model} ({_words(entry)})" for entry in calibration.entries)) or "nothing"


def _words(way: Way | Entry) -> str:
    threads = "" if way.num_threads is None else f" on {way.num_threads} threads"
    ranks = "" if way.tp_size == 1 else f" with runtime.tp_size={way.tp_size}"
    return f"backend {way.backend} in {way.quantization or way.dtype}{threads}{ranks}"
