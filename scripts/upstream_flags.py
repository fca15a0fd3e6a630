"""Prints the table of flags of an upstream engine, made from its real parser: run it in that engine's environment.

    .upstream/sglang/bin/python scripts/upstream_flags.py sglang > sglk/upstream/tables/sglang-0.5.18.json
    VLLM_TARGET_DEVICE=cpu .upstream/vllm/bin/python scripts/upstream_flags.py vllm > ...

Standard library and the engine only. One flag a line, so that two versions compare well.
"""

import argparse
import contextlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from typing import Any

NUMBERS = {"int": "int", "human_readable_int": "int", "float": "float"}
"""Types by the name of the function that reads them; what other functions read is any text to us."""

EXTENSIBLE = {
    "sglang": (
        "--attention-backend",
        "--decode-attention-backend",
        "--prefill-attention-backend",
        "--load-format",
        "--quantization",
        "--grammar-backend",
        "--moe-runner-backend",
    ),
    "vllm": (),
}
"""Flags to whose choices a platform plugin adds its own (`add_attention_backend_choices` and the like)."""


def parser_of(engine: str) -> argparse.ArgumentParser:
    """Return the parser of the installed engine."""
    if engine == "sglang":
        from sglang.srt.server_args import ServerArgs

        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        return parser
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def flags_of(engine: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each flag's first long name and what is known of it."""
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names or isinstance(action, argparse._HelpAction | argparse._VersionAction):
            continue
        yield names[0], dict(_facts(action, names, engine))


def _facts(action: argparse.Action, names: list[str], engine: str) -> Iterator[tuple[str, Any]]:
    kind = type(action).__name__
    if isinstance(action, argparse.BooleanOptionalAction):
        yield "type", "toggle"
    elif action.nargs == 0:
        yield "type", "switch"
    else:
        yield "type", NUMBERS.get(getattr(action.type, "__name__", ""), "text")
    if others := [name for name in names[1:] if not name.startswith("--no-")]:
        yield "aliases", others
    if action.nargs not in (None, 0):
        yield "nargs", action.nargs
    elif kind in ("_AppendAction", "LoRAPathAction"):
        yield "nargs", "*"
    if action.choices is not None and action.nargs != 0:
        yield "choices", [str(choice) for choice in action.choices]
    if names[0] in EXTENSIBLE[engine]:
        yield "extensible", True
    if isinstance(action.default, bool | int | float | str) and action.default not in (argparse.SUPPRESS, False):
        yield "default", action.default
    if kind.startswith("Deprecated"):
        yield "deprecated", getattr(action, "new_flag", None) or getattr(action, "error_message", None) or ""


def main() -> None:
    """Print the table of the engine named on the command line."""
    engine = sys.argv[1]
    version = importlib.metadata.version(engine)
    # What engines say while they are imported is not part of the table.
    with contextlib.redirect_stdout(sys.stderr):
        found = list(flags_of(engine, parser_of(engine)))
    rows = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in found]
    head = f'{{"engine": {json.dumps(engine)}, "version": {json.dumps(version)}, "flags": {{\n'
    print(head + ",\n".join(rows) + "\n}}")


if __name__ == "__main__":
    main()
