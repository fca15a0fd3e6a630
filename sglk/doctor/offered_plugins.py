"""Checks of every plugin that an installed distribution offers, chosen or not: nothing is dropped in silence."""

from collections.abc import Iterator

from sglk.backends.finding import Finding, fail, ok
from sglk.doctor.libraries import library_findings
from sglk.doctor.machine import Machine
from sglk.doctor.sentence import parted
from sglk.plugins.allow_list import VARIABLE, is_allowed
from sglk.plugins.probe import Report, probe_plugins


def check_plugins(machine: Machine) -> Iterator[Finding]:
    """Import each plugin of a distribution in a process of its own, and load the libraries that it brings."""
    reports = [report for report in probe_plugins() if report.plugin.distribution is not None]
    if not reports:
        yield ok("plugins", f"no distribution in the site-packages of {machine.executable} offers a plugin")
    for report in reports:
        yield _finding(report)
    loaded = [report.plugin for report in reports if report.state == "ok"]
    yield from library_findings(machine, [plugin.distribution or "" for plugin in loaded])


def _finding(report: Report) -> Finding:
    plugin = report.plugin
    what = f"{plugin.group} {plugin.name!r} ({plugin.origin})"
    if report.state == "ok":
        version = f", contract version {report.api_version}" if report.api_version is not None else ""
        return ok("plugins", f"{what} can be used: {report.path}{version}")
    if not is_allowed(plugin):
        return ok("plugins", f"{what} is left out: {report.reason}")
    why, todo = parted(f"{what}: {report.state}: {report.reason}")
    return fail("plugins", why, f"{todo or 'repair or uninstall it'}; or leave it out of {VARIABLE}")
