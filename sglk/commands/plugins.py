"""`sglk plugins`: the chip plugins that are found, and what is wrong with those that cannot be used."""

import json
from collections.abc import Sequence
from typing import Any

from sglk.commands.chips import no_arguments
from sglk.commands.flags import common_flags
from sglk.commands.terminal import console, plain_table, warn
from sglk.plugins import plugin_warnings
from sglk.plugins.allow_list import VARIABLE, is_allowed
from sglk.plugins.plugin import BACKENDS
from sglk.plugins.probe import Report, probe_plugins

_HELP = f"""\
usage: sglk plugins [--json]

List the backends and configuration folders that sglk itself and installed distributions offer: distribution, version,
version of the contract, the hardware that the backend has been run on, whether it can be used, and from which path.
Every backend is imported in a process of its own. The exit code is 1 when something that is found cannot be used.

{VARIABLE}=NAME,DISTRIBUTION,... lets in these plugins alone, beside sglk's own; what it leaves out costs no exit code.

examples
  sglk plugins
  sglk plugins --json"""

_KINDS = {BACKENDS: "backend"}


def run(arguments: Sequence[str]) -> int:
    """Print a table, or JSON; returns 1 when a plugin cannot be used."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        print(_HELP)
        return 0
    no_arguments("plugins", flags)
    warn(plugin_warnings())
    reports = probe_plugins()
    if "--json" in flags.switches:
        print(json.dumps([_facts(report) for report in reports], indent=2))
    else:
        show(reports)
    return int(any(report.state != "ok" and is_allowed(report.plugin) for report in reports))


def show(reports: Sequence[Report]) -> None:
    """Print a table, and below it why something cannot be used."""
    table = plain_table("plugin", "kind", "distribution", "version", "API", "run on", "state", "path")
    for report in reports:
        facts = _facts(report)
        table.add_row(
            facts["name"],
            facts["kind"],
            facts["distribution"] or report.plugin.source,
            facts["version"] or "-",
            str(facts["api_version"] or "-"),
            _hardware(report),
            facts["state"],
            facts["path"] or "-",
        )
    table.columns[-1].overflow = "fold"
    screen = console()
    screen.print(table)
    for report in reports:
        if report.reason is not None:
            line = f"\n{report.plugin.name} {report.state}: {report.reason}"
            screen.print(line, markup=False, highlight=False, soft_wrap=True)


def _hardware(report: Report) -> str:
    if report.plugin.group != BACKENDS or report.state != "ok":
        return "-"
    return "simulates" if report.simulated else report.verified_on or "not verified on hardware"


def _facts(report: Report) -> dict[str, Any]:
    plugin = report.plugin
    return {
        "name": plugin.name,
        "kind": _KINDS.get(plugin.group, "conf"),
        "source": "entry point" if plugin.distribution is not None else plugin.source,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "value": plugin.value,
        "path": report.path,
        "api_version": report.api_version,
        "verified_on": report.verified_on,
        "simulated": report.simulated,
        "state": report.state,
        "reason": report.reason,
    }
