"""The environment that an upstream engine is installed in, asked from outside: nothing of it is imported here."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from sglk.errors import ConfigError, RunError
from sglk.upstream.command import UpstreamCommand

ASK_TIMEOUT_S = 60.0
PARSER_TIMEOUT_S = 300.0
"""An engine's parser comes with all that the engine imports."""

_PARSER = Path(__file__).with_name("real_parser.py")

_VERSION = """
import importlib.metadata, importlib.util, sys
if importlib.util.find_spec(sys.argv[1]) is not None:
    try:
        print(importlib.metadata.version(sys.argv[1]))
    except importlib.metadata.PackageNotFoundError:
        print("unknown")
"""


def installed_version(python: str, engine: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the version of `engine` that `python` would run, `unknown` without its metadata, None without it.

    Raises ConfigError where `python` is no interpreter.
    """
    done = _run([python, "-c", _VERSION, engine], ASK_TIMEOUT_S, environment=environment)
    if done.returncode:
        raise ConfigError(f"engine.python={python} does not run: {_last(done.stderr) or _last(done.stdout)}")
    return done.stdout.strip() or None


def require_installed(command: UpstreamCommand) -> None:
    """Raise ConfigError unless the engine is installed where the command looks for it, in its version."""
    python = command.argv[0]
    found = installed_version(python, command.engine, command.variables)
    if found is None:
        raise ConfigError(
            f"{command.engine} is not installed for {python}; run `{python} -m pip install"
            f" {command.engine}=={command.version}`, or name the interpreter of its environment: engine.python=..."
        )
    if found not in ("unknown", command.version):
        raise ConfigError(
            f"{python} has {command.engine} {found}, the command is made for {command.version}; write"
            f" engine.version={found}, or name another interpreter by engine.python"
        )


def parser_verdicts(
    python: str, engine: str, lines: Sequence[Sequence[str]], environment: Mapping[str, str] | None = None
) -> list[str | None]:
    """Return what the engine's own parser says against each command line (without interpreter and module).

    Raises RunError where it cannot be asked.
    """
    done = _run([python, str(_PARSER), engine], PARSER_TIMEOUT_S, json.dumps(lines), environment)
    if done.returncode:
        raise RunError(f"the parser of {engine} could not be asked: {_last(done.stderr) or 'no word of why'}")
    verdicts: list[str | None] = json.loads(_last(done.stdout))
    return verdicts


def require_parsed(command: UpstreamCommand) -> None:
    """Raise ConfigError with what the engine's own parser says against the command."""
    python, _, _, *words = command.argv
    (verdict,) = parser_verdicts(python, command.engine, [words], command.variables)
    if verdict is not None:
        raise ConfigError(f"{command.engine} {command.version} refuses the command: {verdict}")


def _run(
    command: Sequence[str], timeout_s: float, given: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{command[0]} gave no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ConfigError(f"engine.python={command[0]} does not run: {error.strerror}; name an interpreter") from error


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "").strip()
