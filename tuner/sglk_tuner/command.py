"""`sglk tune`: search runtime parameters for one chip, and keep the winner as a profile."""

from collections.abc import Sequence

from sglk.commands.flags import common_flags
from sglk.commands.help import command_help
from sglk.commands.record_file import command_line
from sglk.commands.terminal import warn
from sglk.config.compose import compose
from sglk.config.tune_schema import TuneConfig
from sglk.planner.placement import place

SUMMARY = "search runtime parameters for one chip and keep the winner as a profile"
FLAGS = (("--dry-run", "print the settings that would be measured, and measure nothing"),)
EXAMPLES = (
    "sglk tune chip=cpu model=smollm2 workload=chat",
    "sglk tune chip=cpu model=smollm2 objective=goodput search=tpe search.n_trials=16",
    "sglk tune search.space.runtime.max_running_requests=[4,8,16] study.repeats=3",
    "sglk tune chip=l20 model=qwen7b --dry-run",
)


def run(arguments: Sequence[str]) -> int:
    """Run or resume a study; returns 0, or 130 after an interruption."""
    flags = common_flags(arguments, switches=("--dry-run",))
    if flags.help:
        command_help("tune", SUMMARY, TuneConfig, EXAMPLES, FLAGS)
        return 0
    composed = place(compose("tune", flags.arguments, flags.config_dir), flags.config_dir).composed
    warn(composed.warnings)
    # After the configuration is known to be good: this imports optuna.
    from sglk_tuner.tune import tune

    command = command_line("tune", arguments)
    return tune(composed, flags.config_dir, flags.arguments, command, dry_run="--dry-run" in flags.switches)
