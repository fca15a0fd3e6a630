"""`sglk serve`: start a model behind the OpenAI API."""

from collections.abc import Sequence
from pathlib import Path

from sglk.commands.dry_run import print_commands
from sglk.commands.flags import CommonFlags, common_flags
from sglk.commands.help import command_help
from sglk.commands.stop_signals import end_at_once, stopped_in_order
from sglk.commands.terminal import warn
from sglk.config.compose import compose
from sglk.config.schema import ServeConfig
from sglk.planner.placement import Placement, place
from sglk.server.port import bind

EXAMPLES = (
    "sglk serve chip=cpu model=smollm2",
    "sglk serve chip=cuda model=qwen7b runtime.max_running_requests=64",
    "sglk serve model=/path/to/folder server.port=0",
    """sglk serve chip=cuda model=qwen7b groups="'cuda:0,cpu:0;cuda:1'\"""",
    "sglk serve chip=h100 model=qwen7b engine=sglang --dry-run",
)
DRY_RUN = "--dry-run"
_FLAGS = ((DRY_RUN, "print the commands of upstream engines, checked, and start nothing"),)


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; returns 0 after an orderly end."""
    flags = common_flags(arguments, switches=(DRY_RUN,))
    if flags.help:
        command_help("serve", "start a model behind the OpenAI API", ServeConfig, EXAMPLES, _FLAGS)
        return 0
    if DRY_RUN in flags.switches:
        print_commands(_placed(flags).replicas)
        return 0
    with stopped_in_order():
        placement = _placed(flags)
        composed = placement.composed
        if composed.config.engine.node_rank > 0:
            from sglk.server.node import serve_node

            serve_node(placement.replicas[0])
            return 0
        # Whether the port is free shows before torch is imported; to hold it is for the server.
        bind(composed.config.server.host, composed.config.server.port).close()
        # Libraries of torch end the process where there is no current directory, with words of their own.
        Path.cwd()
        # After the configuration is known to be good: this imports torch.
        from sglk.server.serve import serve

        if not serve(composed.config, composed.profile_path, placement.replicas):
            # Threads of torch that are cut off while the interpreter ends would abort the process.
            end_at_once(0)
    return 0


def _placed(flags: CommonFlags) -> Placement[ServeConfig]:
    composed = compose("serve", flags.arguments, flags.config_dir)
    warn(composed.warnings)
    return place(composed, flags.config_dir)
