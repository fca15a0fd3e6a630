"""What a report is made of: studies and single runs, found on the disk. A damaged file is named and left out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sglk.bench.record import Record
from sglk.errors import ConfigError, RunError, nearest
from sglk_reports.study import SUMMARY, Study, read_study

STUDIES = "studies"
RUNS = "runs"
_SHOWN = 10
"""Names that a message lists at most."""


@dataclass
class StudySource:
    """One study and the records that its trials left."""

    study: Study
    folder: Path
    records: dict[int, Record] = field(default_factory=dict)
    """By trial number."""
    closing: list[tuple[int, Record]] = field(default_factory=list)
    """Trial number and record of each run of the closing comparison."""


@dataclass
class RunSource:
    """One record of `sglk bench`, outside any study."""

    record: Record
    path: Path


@dataclass
class Sources:
    """All that was found, in the order it was asked for."""

    studies: list[StudySource] = field(default_factory=list)
    runs: list[RunSource] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """One line per file that could not be read."""


def find_sources(wanted: Sequence[str], root: Path) -> Sources:
    """Read what `wanted` names: record files, study folders, folders of either, or names of studies.

    Nothing wanted means `studies/` and `runs/` below `root`. Raises ConfigError for what does not exist, RunError if
    there is nothing to read or nothing readable.
    """
    paths = [_resolve(name, root) for name in wanted] or _default_paths(root)
    sources = Sources()
    for path in _unique(file for found in paths for file in _files(found)):
        _read(path, sources)
    if not sources.studies and not sources.runs:
        names = ", ".join(str(path) for path in paths)
        if sources.skipped:
            raise RunError(f"nothing to report, no file is readable: {'; '.join(sources.skipped)}")
        raise RunError(f"nothing to report in {names}; run `sglk tune` or `sglk bench` first")
    return sources


def _default_paths(root: Path) -> list[Path]:
    found = [root / name for name in (STUDIES, RUNS) if (root / name).is_dir()]
    if not found:
        raise ConfigError(
            f"no {STUDIES}/ or {RUNS}/ in {str(root.resolve())!r}; run `sglk tune` or `sglk bench` first or name a path"
        )
    return found


def _resolve(name: str, root: Path) -> Path:
    candidates = [root / name, root / STUDIES / name, root / RUNS / name, root / RUNS / f"{name}.json"]
    for path in candidates:
        if path.exists():
            return path
    known = _known(root)
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    exists = f"there are {', '.join(known[:_SHOWN])}{more}" if known else f"{STUDIES}/ and {RUNS}/ hold none"
    raise ConfigError(f"{name!r} is no file, folder, study or run{nearest(name, known)}; {exists}")


def _known(root: Path) -> list[str]:
    studies = [path.parent.name for path in sorted((root / STUDIES).glob(f"*/{SUMMARY}"))]
    return studies + [path.stem for path in sorted((root / RUNS).glob("*.json"))]


def _files(path: Path) -> list[Path]:
    """Return the record and summary files that `path` stands for."""
    if path.is_file():
        return [path]
    if (path / SUMMARY).is_file():
        return [path / SUMMARY]
    return sorted(path.glob("*.json")) + sorted(path.glob(f"*/{SUMMARY}"))


def _unique(paths: Iterable[Path]) -> list[Path]:
    return list({path.resolve(): path for path in paths}.values())


def _read(path: Path, sources: Sources) -> None:
    try:
        if path.name == SUMMARY:
            sources.studies.append(_read_study(path, sources.skipped))
        else:
            record = Record.load_file(path)
            if all(run.record.id != record.id for run in sources.runs):  # a copied file is the same run
                sources.runs.append(RunSource(record, path))
    except RunError as error:
        sources.skipped.append(str(error))


def _read_study(path: Path, skipped: list[str]) -> StudySource:
    source = StudySource(read_study(path), path.parent)
    for trial in source.study.trials:
        record = _read_record(trial.record, path.parent, skipped)
        if record is not None and trial.number is not None:
            source.records[trial.number] = record
    closing = source.study.closing
    for measurement in closing.measurements if closing else []:
        record = _read_record(measurement.record, path.parent, skipped)
        if record is not None:
            source.closing.append((measurement.number, record))
    return source


def _read_record(name: str | None, folder: Path, skipped: list[str]) -> Record | None:
    if name is None:
        return None
    try:
        return Record.load_file(folder / name)
    except RunError as error:
        skipped.append(str(error))
        return None
