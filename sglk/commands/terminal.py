"""Tables and YAML as people read them in a terminal, a pipe or a file."""

import errno
import os
import sys
from collections.abc import Iterable
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

_PIPE_WIDTH = 160
_LEAST_WIDTH = 20


class _Dumper(yaml.SafeDumper):
    """Mappings as blocks, lists of plain values on one line."""


def _sequence(dumper: _Dumper, items: list[Any]) -> yaml.Node:
    plain = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=plain)


_Dumper.add_representer(list, _sequence)


def to_yaml(tree: dict[str, Any]) -> str:
    """Return `tree` as YAML in its own order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)


def plain_table(*columns: str) -> Table:
    """Return an empty table without lines, which goes on below where a terminal is too narrow: no figure is cut."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    return table


def warn(lines: Iterable[str]) -> None:
    """Print warnings where errors go too."""
    for line in lines:
        print(f"sglk: warning: {line}", file=sys.stderr)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command line, as with all other output; rich would end the process with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console() -> Console:
    """Return a console as wide as the terminal; a pipe gets room for whole rows."""
    if not sys.stdout.isatty():
        return _Console(width=_PIPE_WIDTH)
    screen = _Console()
    # $COLUMNS may be 0, and then nothing at all would be shown.
    return screen if screen.width >= _LEAST_WIDTH else _Console(width=_LEAST_WIDTH)
