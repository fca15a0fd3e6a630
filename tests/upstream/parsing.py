"""A parser built from a table of flags alone: what an installed engine would accept."""

import argparse
from typing import NoReturn

from sglk.upstream.table import FlagTable

READERS = {"int": int, "float": float, "text": str}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser_of(table: FlagTable, added: dict[str, str]) -> Parser:
    """Return the parser; `added` has values that a platform plugin adds to a flag's choices."""
    parser = Parser(allow_abbrev=False)
    for flag in table.flags.values():
        names = [flag.name, *flag.aliases]
        if flag.type == "toggle":
            parser.add_argument(*names, action=argparse.BooleanOptionalAction)
        elif flag.type == "switch":
            parser.add_argument(*names, action="store_true")
        else:
            choices = [*flag.choices, *(value for name, value in added.items() if name == flag.name)]
            given = {"choices": choices} if flag.choices else {}
            parser.add_argument(*names, type=READERS[flag.type], nargs=flag.nargs or None, **given)
    return parser
