"""`--help` of every command that composes a configuration."""

import textwrap
from collections.abc import Sequence

from sglk.config.keys import GROUPS, ROOTS, keys, leaves
from sglk.config.schema import ServeConfig
from sglk.config.search_path import PROFILES, search_path
from sglk.plugins import backend_names

_WIDTH = 100
_FLAGS = (
    ("--config-dir DIR", "folder whose <group>/<option>.yaml files come before sglk's own"),
    ("--debug", "show the traceback of an error"),
    ("--help", "show this text"),
)
_FROM_GROUPS = ("chip", "model", "profile")
"""Nodes that a choice fills in; their keys can be set, but are not what people look for here."""


def command_help(
    name: str,
    summary: str,
    schema_root: type[ServeConfig],
    examples: Sequence[str],
    flags: Sequence[tuple[str, str]] = (),
) -> None:
    """Print usage, groups with their options, keys with what they mean, flags and examples.

    `schema_root` is one of `sglk.config.keys.ROOTS`; `flags` are the command's own, as (flag, meaning).
    """
    command = next(key for key, root in ROOTS.items() if root is schema_root)
    print(f"usage: sglk {name} [group=option ...] [key=value ...] [flags]\n\n{summary}\n")
    print("groups")
    for group in GROUPS[command]:
        _entry(f"{group}=", _options(group))
    for node in _nodes(schema_root):
        print(f"\n{node}")
        for path, text in _lines(schema_root, node):
            _entry(path, text)
    print("\nflags")
    for flag, text in [*flags, *_FLAGS]:
        _entry(flag, text)
    print("\nexamples")
    for example in examples:
        print(f"  {example}")


def _options(group: str) -> str:
    options = search_path().options(group)
    if group == PROFILES:
        return f"chip/model of a tuned profile; on its own that of the chip and model, if any; {', '.join(options)}"
    if group == "model":
        return f"{', '.join(options)}; or /path/to/folder, /path/to/file.gguf, org/name"
    if group == "backend":
        options = sorted({*options, *backend_names()})
    return ", ".join(options)


def _nodes(root: type) -> list[str]:
    top = [path for path in keys(root) if "." not in path]
    return [node for node in top if node not in _FROM_GROUPS]


def _lines(root: type, node: str) -> list[tuple[str, str]]:
    return [
        (path, key.doc or key.wanted)
        for path, key in leaves(root).items()
        if path == node or path.startswith(f"{node}.")
    ]


def _entry(term: str, text: str) -> None:
    indent = 36
    head = f"  {term}".ljust(indent - 1) + " "
    if len(head) > indent:
        print(head.rstrip())
        head = " " * indent
    print(textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * indent))
