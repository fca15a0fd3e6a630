"""What `sglk serve --dry-run` prints: the commands of upstream engines, to read, to paste or to hand to others."""

import os
import sys
from collections.abc import Sequence

from sglk.config.fleet import ReplicaConfig
from sglk.config.profiles import NATIVE
from sglk.errors import ConfigError
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.compose import FIRST_PORT, compose_command
from sglk.upstream.interpreter import installed_version, require_parsed


def print_commands(replicas: Sequence[ReplicaConfig]) -> None:
    """Print one command for each replica that would be launched; raises ConfigError for one that would not run.

    Where the engine is installed its own parser is asked, else sglk's table of its flags.
    """
    launched = [replica for replica in replicas if replica.config.engine.name != NATIVE]
    if not launched:
        raise ConfigError(
            "--dry-run prints the command of an upstream engine, and engine=native runs in sglk's own process; choose"
            " engine=sglang or engine=vllm"
        )
    for number, replica in enumerate(launched):
        command = compose_command(replica.config, port=FIRST_PORT + number, environ=os.environ)
        judge = _judge(command)
        print(f"# {replica.name}: {judge}")
        print("\n".join(f"# {note}" for note in command.notes), end="\n" * bool(command.notes))
        print(command.shell())
    sys.stdout.flush()


def _judge(command: UpstreamCommand) -> str:
    python, title = command.argv[0], f"{command.engine} {command.version}"
    if installed_version(python, command.engine, command.variables) is None:
        return f"checked against the flags of {title}, which is not installed for {python}"
    require_parsed(command)
    return f"accepted by the parser of {title}"
