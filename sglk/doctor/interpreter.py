"""Checks of this Python: its version, its C library, and which packages an import would really reach."""

import re
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from sglk.backends.finding import Finding, fail, ok, warn
from sglk.doctor.installed import header, located, named, plugin_folders, plugin_modules
from sglk.doctor.machine import Machine
from sglk.plugins.installed import normalised

_HOOKS = ("sitecustomize", "usercustomize")


def check_python(machine: Machine) -> Iterator[Finding]:
    """Compare this Python with what sglk declares, and name the folder that plugins have to be in."""
    given, where = machine.python_version, machine.executable
    wanted = _requires_python(named(machine, "sglk"))
    if wanted and given not in wanted:
        yield fail("python", f"Python {given} ({where}) is not in {wanted}", f"install sglk into a Python {wanted}")
    else:
        yield ok("python", f"Python {given} ({where})", f"plugins belong into it: {where} -m pip install ...")
    if machine.glibc is None:
        yield warn(
            "glibc", "the C library is not glibc", "use a glibc system: torch and the SDKs of chips are built for it"
        )
    else:
        yield ok("glibc", f"glibc {machine.glibc}")


def _requires_python(found: Distribution | None) -> SpecifierSet | None:
    text = header(found, "Requires-Python") if found else None
    try:
        return SpecifierSet(text) if text else None
    except InvalidSpecifier:
        return None


def check_duplicates(machine: Machine) -> Iterator[Finding]:
    """Warn of distributions that lie in several folders of the import path: the first hides the others."""
    seen: dict[str, list[Distribution]] = {}
    for found in distributions(path=list(dict.fromkeys(machine.search))):
        seen.setdefault(normalised(header(found, "Name")), []).append(found)
    several = {name: copies for name, copies in seen.items() if name and len({*map(located, copies)}) > 1}
    for name, (first, *others) in sorted(several.items()):
        if len({copy.version for copy in (first, *others)}) > 1 or name == "sglk":
            hidden = ", ".join(f"{copy.version} at {_place(machine, copy)}" for copy in others)
            yield warn(
                "installed twice",
                f"{name} {first.version} at {_place(machine, first)} hides {hidden}",
                f"uninstall one of them: {machine.executable} -m pip uninstall {name}",
            )


def _place(machine: Machine, found: Distribution) -> str:
    folder = located(found)
    return f"{folder} (the user's own site-packages)" if folder == machine.user_site else folder


def check_shadowing(machine: Machine) -> Iterator[Finding]:
    """Look for folders that stand in the way of sglk, torch and the modules of plugins."""
    for name in ("sglk", "torch", *plugin_modules()):
        yield from _shadow(machine, name)


def _shadow(machine: Machine, name: str) -> Iterator[Finding]:
    first = PathFinder.find_spec(name, list(machine.search))
    if first is None:
        return
    if first.origin is None:
        folders = ", ".join(first.submodule_search_locations or ())
        yield fail(
            "shadowed", f"module {name!r} is a bare folder, {folders}: an import succeeds and finds nothing in it",
            f"start in another folder or rename it, and install {name}",
        )  # fmt: skip
        return
    others = [folder for folder in machine.search if Path(folder) != machine.cwd]
    second = PathFinder.find_spec(name, others)
    if second is not None and second.origin is not None and not Path(second.origin).samefile(first.origin):
        yield fail(
            "shadowed", f"{first.origin} in the current directory hides the installed {second.origin}",
            "start in another folder, or rename that one",
        )  # fmt: skip
        return
    own = _installed_file(machine, name)
    if own is not None and not own.samefile(first.origin):
        yield warn(
            "shadowed", f"{first.origin}, which nobody installed, hides the installed {own}",
            "take its folder out of PYTHONPATH and of .pth files, or uninstall the other",
        )  # fmt: skip


def _installed_file(machine: Machine, name: str) -> Path | None:
    """Return the file of a module that its distribution brings; None for one that is installed editable."""
    found = named(machine, name)
    folders = [Path(located(found))] if found is not None else plugin_folders(name)
    files = (folder / file for folder in folders for file in (f"{name}/__init__.py", f"{name}.py"))
    return next((file for file in files if file.is_file()), None)


def check_start_up_hooks(machine: Machine) -> Iterator[Finding]:
    """Name what runs before sglk in every process of this Python, and warn where that imports torch or a plugin."""
    early = ("torch", *plugin_modules())
    for name in _HOOKS:
        spec = PathFinder.find_spec(name, list(machine.search))
        if spec is not None and spec.origin is not None:
            yield _hook(name, Path(spec.origin), _read(Path(spec.origin)), early)
    for folder in dict.fromkeys(machine.search):
        for file in sorted(Path(folder).glob("*.pth")):
            lines = [line for line in _read(file).splitlines() if line.startswith(("import ", "import\t"))]
            if lines:
                yield _hook(".pth file", file, "\n".join(lines), early)
    if machine.environment.get("PYTHONPATH"):
        yield ok("PYTHONPATH", f"PYTHONPATH={machine.environment['PYTHONPATH']} comes before all that is installed")


def _hook(what: str, file: Path, code: str, early: Iterable[str]) -> Finding:
    imported = [name for name in early if re.search(rf"\b(import|from)\s+{re.escape(name)}\b", code)]
    if imported:
        return warn(
            "start-up hooks",
            f"{what} {file} imports {', '.join(imported)} in every Python process, before sglk sets anything",
            "remove the import: a chip's plugin must come before torch finds its devices",
        )
    return ok("start-up hooks", f"{what} {file} runs at every start")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
