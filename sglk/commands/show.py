"""`sglk show`: the composed configuration, and where each runtime value comes from."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sglk.commands.flags import common_flags
from sglk.commands.help import command_help
from sglk.commands.terminal import console, plain_table, to_yaml, warn
from sglk.config.compose import Composed, compose
from sglk.config.keys import ROOTS
from sglk.config.secrets import masked
from sglk.errors import ConfigError, nearest
from sglk.planner.placement import place

_EXAMPLES = (
    "sglk show chip=l20 model=qwen32b",
    "sglk show chip=l20 model=qwen32b runtime.chunked_prefill_size=4096 --yaml",
    "sglk show --command tune chip=cpu workload=long_prompt",
    "sglk show chip=h100 --json",
)
_FLAGS = (
    ("--command NAME", f"the command to compose for: {', '.join(ROOTS)}; serve unless given"),
    ("--yaml", "the configuration alone"),
    ("--json", "configuration, sources and choices as JSON, nulls and provenance included"),
)


def run(arguments: list[str]) -> int:
    """Compose as another command would and print the result; secrets are masked."""
    flags = common_flags(arguments, switches=("--json", "--yaml"))
    command, rest = _command(flags.arguments)
    if flags.help:
        command_help("show", "Print the composed configuration and its sources.", ROOTS[command], _EXAMPLES, _FLAGS)
        return 0
    composed = compose(command, rest, flags.config_dir)
    warn(composed.warnings)
    composed = place(composed, flags.config_dir).composed
    if "--json" in flags.switches:
        print(json.dumps(_document(composed), indent=2, ensure_ascii=False))
        return 0
    sys.stdout.write(to_yaml(_readable(composed)))
    if "--yaml" not in flags.switches:
        print()
        _print_sources(composed)
    return 0


def _command(arguments: list[str]) -> tuple[str, list[str]]:
    rest, command = [], "serve"
    words = iter(arguments)
    for word in words:
        if word == "--command" or word.startswith("--command="):
            command = word.partition("=")[2] if "=" in word else next(words, "")
        else:
            rest.append(word)
    if command not in ROOTS:
        hint = nearest(command, ROOTS) or f"; allowed: {', '.join(ROOTS)}"
        raise ConfigError(f"--command {command!r} composes nothing{hint}")
    return command, rest


def _document(composed: Composed[Any]) -> dict[str, Any]:
    return {
        "command": composed.command,
        "config": masked(asdict(composed.config)),
        "sources": composed.sources,
        "choices": composed.choices,
        "profile": str(composed.profile_path) if composed.profile_path else None,
    }


def _readable(composed: Composed[Any]) -> dict[str, Any]:
    """The configuration without nulls, empty nodes, and the sources of a chip's figures."""
    tree = masked(asdict(composed.config))
    del tree["chip"]["figures"]
    if composed.profile_path:
        record = tree["profile"] or {}
        tree["profile"] = {"file": str(composed.profile_path), **{key: record.get(key) for key in ("kind", "created")}}
    pruned = _pruned(tree)
    assert isinstance(pruned, dict)
    return pruned


def _pruned(node: Any) -> Any:
    if isinstance(node, dict):
        kept = {key: _pruned(value) for key, value in node.items()}
        return {key: value for key, value in kept.items() if value is not None and value not in ({}, [])}
    return [_pruned(each) for each in node] if isinstance(node, list) else node


def _print_sources(composed: Composed[Any]) -> None:
    table = plain_table("runtime", "value", "from")
    for key, value, source in _rows(composed):
        table.add_row(key, value, source, style=None if source != "default" else "dim")
    console().print(table)


def _rows(composed: Composed[Any]) -> Iterator[tuple[str, str, str]]:
    for key, source in composed.sources.items():
        value = getattr(composed.config.runtime, key.partition(".")[2])
        yield key, "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value), source
