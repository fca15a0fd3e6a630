"""`sglk doctor`: what is wrong with this machine for a deployment, before anything starts."""

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

import sglk
from sglk.backends.finding import Finding, fail
from sglk.commands.flags import CommonFlags, common_flags
from sglk.commands.help import command_help
from sglk.commands.terminal import console, plain_table
from sglk.config.compose import compose
from sglk.config.schema import ServeConfig
from sglk.doctor.checks import examine
from sglk.doctor.deployment import Deployment
from sglk.doctor.machine import this_machine
from sglk.errors import ConfigError
from sglk.planner.placement import place
from sglk.server.port import bind

SCHEMA_VERSION = 1
"""Of the JSON document: raised when a field changes its meaning or goes."""

_EXAMPLES = (
    "sglk doctor",
    "sglk doctor chip=l20 model=qwen32b runtime.tp_size=4",
    "sglk doctor chip=h100 --json",
)
_FLAGS = (("--json", "one document: schema_version, sglk, chip, backend, model, findings, counts"),)
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def run(arguments: list[str]) -> int:
    """Examine the machine; returns 1 when something will keep the chip from serving, else 0."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        command_help("doctor", "Look for what keeps a chip from serving here.", ServeConfig, _EXAMPLES, _FLAGS)
        return 0
    wanted, problems = what_to_examine(flags)
    findings = problems + examine(this_machine(bind), wanted)
    if "--json" in flags.switches:
        print(json.dumps(_document(wanted, findings), indent=2, ensure_ascii=False))
    else:
        _print(findings)
    return 1 if _count(findings)["fail"] else 0


def deployment(words: Sequence[str] = (), config_dir: str | None = None) -> Deployment:
    """Return the deployment that `sglk serve` would start; raises ConfigError as that does."""
    placement = place(compose("serve", words, config_dir), config_dir)
    return Deployment(placement.composed, [replica.config for replica in placement.replicas])


def what_to_examine(flags: CommonFlags) -> tuple[Deployment | None, list[Finding]]:
    """Return the deployment that was asked for, or none and why when not even the defaults make one."""
    try:
        return deployment(flags.arguments, flags.config_dir), []
    except ConfigError as error:
        # What the user typed is wrong, unless not even the defaults compose: then the installation is.
        if flags.arguments or flags.config_dir:
            raise
        return None, [fail("configuration", str(error), "repair it; until then only the machine itself is checked")]


def _document(wanted: Deployment | None, findings: list[Finding]) -> dict[str, Any]:
    config = wanted.config if wanted else None
    return {
        "schema_version": SCHEMA_VERSION,
        "sglk": sglk.__version__,
        "chip": config and config.chip.name,
        "backend": config and config.backend.name,
        "model": config and config.model.name,
        "findings": [
            {"check": each.check, "status": each.status, "why": each.why, "todo": each.todo} for each in findings
        ],
        "counts": _count(findings),
    }


def _print(findings: list[Finding]) -> None:
    table = plain_table("", "check", "finding")
    for finding in findings:
        style = _STYLES[finding.status]
        text = Text(finding.why)
        if finding.todo:
            text.append(f"\n-> {finding.todo}", style="dim" if finding.status == "ok" else style)
        table.add_row(Text(finding.status, style=style), finding.check, text)
    screen = console()
    screen.print(table)
    counts = _count(findings)
    screen.print("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()))


def _count(findings: list[Finding]) -> dict[str, int]:
    return {status: sum(finding.status == status for finding in findings) for status in _STYLES}
