"""The command line: one table of commands; a command's module is imported when it is called and not before."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from sglk.errors import SglkError, nearest

COMMANDS = {
    "serve": ("sglk.commands.serve", "start a model behind the OpenAI API"),
    "bench": ("sglk.commands.bench", "measure a deployment or a running URL under a workload"),
    "tune": ("sglk_tuner.command", "search runtime parameters for one chip and keep the winner as a profile"),
    "report": ("sglk_reports.command", "rank and plot what was measured"),
    "show": ("sglk.commands.show", "print the composed configuration and where each value comes from"),
    "chips": ("sglk.commands.chips", "list the chips and their figures"),
    "models": ("sglk.commands.models", "list the models and their shapes"),
    "completion": ("sglk.commands.completion", "print a completion script for bash, zsh or fish"),
}
"""Name on the command line -> module with `run(arguments) -> exit code`, summary."""

EXTRAS = {"optuna": "tune", "pandas": "report", "plotly": "report", "huggingface_hub": "hub"}
"""Packages that an extra of sglk brings."""

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_BUG = 70


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted; keep the interpreter from flushing into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except SglkError as error:
        return _fail(str(error), error.exit_code, "--debug" in words)
    except Exception as error:  # noqa: BLE001 - the last resort: users never meet a traceback that they did not ask for
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"internal error: {text}; --debug shows where, please report it", _BUG, "--debug" in words)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"sglk: error: {message}", file=sys.stderr)
    return code


def _dispatch(words: list[str]) -> int:
    # `sglk --debug serve` means `sglk serve --debug`.
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        return _without_command(words)
    if name not in COMMANDS:
        raise SglkError(f"command {name!r} is unknown{nearest(name, COMMANDS) or '; commands: ' + ', '.join(COMMANDS)}")
    position = words.index(name)
    module_name, _ = COMMANDS[name]
    try:
        module = importlib.import_module(module_name)
        code: int = module.run([*words[:position], *words[position + 1 :]])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise SglkError(f"`sglk {name}` needs {package}; pip install 'sglk[{EXTRAS[package]}]'") from error
    return code


def _without_command(words: list[str]) -> int:
    if "--version" in words:
        from importlib.metadata import version

        print(f"sglk {version('sglk')}")
        return 0
    unknown = [word for word in words if word not in ("--help", "-h", "--debug")]
    if unknown:
        raise SglkError(f"flag {unknown[0]!r} is unknown; see `sglk --help`")
    print(help_text())
    return 0


def help_text() -> str:
    """Return what `sglk --help` prints."""
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: sglk COMMAND [group=option ...] [key=value ...]\n\n"
        "Deploy and tune LLM inference on any chip, by configuration.\n\n"
        f"commands\n{commands}\n\n"
        "`sglk COMMAND --help` lists groups, keys and examples; `sglk --version` prints the version.\n\n"
        "examples\n"
        "  sglk serve chip=cpu model=smollm2\n"
        "  sglk show chip=kunlun model=qwen32b runtime.chunked_prefill_size=4096\n"
        "  sglk tune chip=cpu model=smollm2 workload=chat"
    )
