"""Checks of native libraries: each is loaded with all its symbols, in a child process."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

from sglk.backends.finding import Finding, fail, ok
from sglk.doctor.children import ask
from sglk.doctor.installed import named
from sglk.doctor.machine import Machine
from sglk.errors import RunError
from sglk.plugins.causes import advice, module_path
from sglk.plugins.plugin import BACKENDS

_LIBRARY = re.compile(r".*\.so(\.\d+)*")
_OTHER_PYTHON = re.compile(rf".*\.cpython-(?!{sys.version_info.major}{sys.version_info.minor}-).*")
_IMPORTED = ("python", "torch")
"""Distributions whose libraries an import of torch has loaded."""


def library_findings(machine: Machine, distributions: Iterable[str]) -> Iterator[Finding]:
    """Load the libraries that `distributions`, as far as they are installed, bring."""
    for name in dict.fromkeys(distributions):
        found = named(machine, name)
        files = [] if found is None or name in _IMPORTED else native_libraries(found)
        if files:
            yield from _loaded(name, files)


def native_libraries(found: Distribution) -> list[Path]:
    """Return the shared libraries of a distribution that this Python could load."""
    paths = [Path(str(file.locate())) for file in found.files or ()]
    for folder in _plugin_folders(found):
        paths += sorted(folder.rglob("*.so*"))
    fitting = [path for path in paths if _LIBRARY.fullmatch(path.name) and not _OTHER_PYTHON.fullmatch(path.name)]
    return [path for path in dict.fromkeys(map(Path.resolve, fitting)) if path.is_file()]


def _plugin_folders(found: Distribution) -> Iterator[Path]:
    """Yield the packages behind a plugin's entry points: an editable install does not list their files."""
    for module in {entry.module.partition(".")[0] for entry in found.entry_points if entry.group == BACKENDS}:
        path = module_path(module)
        if path is not None and path.name == "__init__.py":
            yield path.parent


def _loaded(name: str, files: list[Path]) -> Iterator[Finding]:
    try:
        complaints = ask("libraries", list(map(str, files)))
    except RunError as error:
        yield fail(
            "native libraries", f"loading the libraries of {name} ends its process: {error}", f"reinstall {name}"
        )
        return
    for file, complaint in complaints.items():
        why = complaint if file in complaint else f"{file}: {complaint}"
        yield fail("native libraries", why, advice(complaint) or f"reinstall {name}")
    if not complaints:
        yield ok("native libraries", f"all {len(files)} libraries of {name} load with all their symbols")
