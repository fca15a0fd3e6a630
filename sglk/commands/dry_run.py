"""What `sglk serve --dry-run` prints: the commands of upstream engines, to read, to paste or to hand to others."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sglk.config.fleet import ReplicaConfig
from sglk.config.profiles import NATIVE
from sglk.config.schema import ServeConfig
from sglk.errors import ConfigError
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.compose import FIRST_PORT, compose_command
from sglk.upstream.interpreter import installed_version, require_parsed


def print_commands(replicas: Sequence[ReplicaConfig]) -> None:
    """Print one command for each replica that would be launched; raises ConfigError for one that would not run.

    Where that version of the engine is installed its own parser is asked, else sglk's table of its flags.
    """
    launched = [replica for replica in replicas if replica.config.engine.name != NATIVE]
    if not launched:
        raise ConfigError(
            "--dry-run prints the command of an upstream engine, and engine=native runs in sglk's own process; choose"
            " engine=sglang or engine=vllm"
        )
    machines = ((replica, each) for replica in launched for each in _machines(replica))
    for number, (replica, (name, config)) in enumerate(machines):
        command = compose_command(config, port=FIRST_PORT + number, environ=os.environ, inherited=replica.inherited)
        judge = _judge(command)
        print(f"# {name}: {judge}")
        print("\n".join(f"# {note}" for note in command.notes), end="\n" * bool(command.notes))
        print(command.shell())
    sys.stdout.flush()


def _machines(replica: ReplicaConfig) -> Iterator[tuple[str, ServeConfig]]:
    """Yield what each machine of a replica runs; Ray alone starts what runs on the others."""
    config = replica.config
    if config.engine.nnodes == 1 or config.engine.executor == "ray":
        yield replica.name, config
        return
    for rank in range(config.engine.nnodes):
        yield f"{replica.name} on machine {rank}", replace(config, engine=replace(config.engine, node_rank=rank))


def _judge(command: UpstreamCommand) -> str:
    python, title = command.argv[0], f"{command.engine} {command.version}"
    found = installed_version(python, command.engine, command.variables)
    if found is None:
        return f"checked against the flags of {title}, which is not installed for {python}"
    if found not in ("unknown", command.version):
        return f"checked against the flags of {title}; {python} has {found}, and this machine would refuse to start it"
    require_parsed(command)
    return f"accepted by the parser of {title}"
