"""Checks of installed versions: sglk's own needs, those of its extras, and the ranges that a plugin declares."""

from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from sglk.backends.finding import Finding, fail, ok, warn
from sglk.doctor.installed import located, named
from sglk.doctor.machine import Machine

_NOT_FOR_USERS = ("all", "dev")
"""Extras that sum up others, or that only those who change sglk need."""


def check_packages(machine: Machine) -> Iterator[Finding]:
    """Compare what is installed with what sglk and its extras ask for."""
    sglk = named(machine, "sglk")
    if sglk is None:
        yield fail(
            "sglk", "sglk runs from a folder but is not installed in this Python: no plugin can register with it",
            f"{machine.executable} -m pip install sglk",
        )  # fmt: skip
        return
    yield ok("sglk", f"sglk {sglk.version} at {located(sglk)}")
    requirements = [Requirement(line) for line in sglk.requires or ()]
    yield from _core(
        machine, [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    )
    for extra in sglk.metadata.get_all("Provides-Extra") or ():
        if extra not in _NOT_FOR_USERS:
            yield _extra(machine, extra, [each for each in requirements if _belongs(each, extra)])


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _core(machine: Machine, requirements: list[Requirement]) -> Iterator[Finding]:
    bad = [problem for each in requirements if (problem := _problem(machine, each))]
    for problem in bad:
        yield fail("packages", problem, f"{machine.executable} -m pip install --upgrade sglk")
    if not bad:
        yield ok("packages", f"all {len(requirements)} packages that sglk needs fit")


def _extra(machine: Machine, extra: str, requirements: list[Requirement]) -> Finding:
    missing = [each.name for each in requirements if named(machine, each.name) is None]
    command = f"{machine.executable} -m pip install 'sglk[{extra}]'"
    if missing:
        return ok(
            "extras", f"extra {extra!r} is not installed (no {', '.join(missing)})", f"where it is wanted: {command}"
        )
    problems = [problem for each in requirements if (problem := _problem(machine, each))]
    if problems:
        return warn("extras", f"extra {extra!r}: {'; '.join(problems)}", command)
    versions = ", ".join(
        f"{each.name} {found.version}" for each in requirements if (found := named(machine, each.name))
    )
    return ok("extras", f"extra {extra!r}: {versions}")


def _problem(machine: Machine, requirement: Requirement) -> str | None:
    found = named(machine, requirement.name)
    if found is None:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(found.version, prereleases=True):
        return f"{requirement.name} {found.version} is not in {requirement.specifier}"
    return None


def check_ranges(
    machine: Machine, backend: str, ranges: Mapping[str, str], reported: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Compare versions with the ranges that a plugin declares.

    `reported` holds what no distribution tells: `driver`, `sdk`, and `torch` as it names itself.
    """
    known = {"python": machine.python_version, "glibc": machine.glibc, **reported}
    for name, text in ranges.items():
        installed = named(machine, name)
        version = known.get(name, installed.version if installed else None)
        yield _in_range(backend, name, text, version)


def _in_range(backend: str, name: str, text: str, version: str | None) -> Finding:
    check = f"{backend} needs"
    try:
        wanted = SpecifierSet(text)
    except InvalidSpecifier:
        return warn(
            check, f"{name} {text!r}, which is no version range", "tell the plugin's author; PEP 440 has the form"
        )
    if version is None:
        return fail(check, f"{name} {text}, which is not here", f"install {name} {text}")
    try:
        fits = wanted.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return warn(check, f"{name} {text}; {version!r} cannot be compared with it", "compare them by hand")
    if not fits:
        return fail(check, f"{name} {text}; {version} is installed", f"install {name} {text}")
    return ok(check, f"{name} {text}; {version} is installed")
