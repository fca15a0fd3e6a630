"""Asks an installed engine's own parser about command lines: run by path, in that engine's environment.

`python real_parser.py ENGINE`: JSON on standard input, a list of command lines; the last line of standard output is
a JSON list with null, or what the parser says, for each. Standard library and the engine only.
"""

import argparse
import json
import sys


class _Refused(Exception):
    """What `ArgumentParser.error` was called with."""


def _error(message: str) -> None:
    raise _Refused(message)


def _parser(engine: str) -> argparse.ArgumentParser:
    if engine == "sglang":
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs

        # They add their own values to the choices.
        load_plugins()
        # As `prepare_server_args` makes it, without abbreviations: a typo shall not pass as a prefix.
        parser = argparse.ArgumentParser(allow_abbrev=False)
        ServerArgs.add_cli_args(parser)
        return parser
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    made: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))
    return made


def main() -> None:
    """Print the verdicts."""
    # As with `-m`: the current folder, not this file's, in which other files are called as the engines are.
    sys.path[0] = ""
    parser = _parser(sys.argv[1])
    parser.error = _error  # type: ignore[method-assign, assignment]
    verdicts = [_verdict(parser, argv) for argv in json.load(sys.stdin)]
    print(f"\n{json.dumps(verdicts)}")


def _verdict(parser: argparse.ArgumentParser, argv: list[str]) -> str | None:
    try:
        # The command that vLLM has for engines that answer no requests, and its only other word.
        parser.parse_args(argv[1:] if argv[:1] == ["serve"] else argv)
    except _Refused as refusal:
        return str(refusal)
    return None


if __name__ == "__main__":
    main()
