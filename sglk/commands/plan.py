"""`sglk plan`: whether and how a model fits its devices, without weights, torch or a device."""

import json
from collections.abc import Sequence

from sglk.commands.flags import common_flags
from sglk.commands.help import command_help
from sglk.commands.plan_document import document
from sglk.commands.plan_tables import print_plan
from sglk.commands.terminal import warn
from sglk.config.compose import compose
from sglk.config.fleet import ReplicaConfig
from sglk.config.plan_schema import PlanConfig
from sglk.errors import ConfigError
from sglk.planner.placement import place
from sglk.planner.plan import plan_deployment
from sglk.planner.speed import estimated_speed

_EXAMPLES = (
    "sglk plan chip=a100_40g model=qwen32b runtime.tp_size=2",
    "sglk plan chip=l20 model=qwen32b plan.context_length=4096 plan.requests=8",
    "sglk plan chip=h100 model=qwen72b runtime.tp_size=4 engine=sglang",
    """sglk plan chip=h100 model=qwen7b groups="'cuda:0,cuda:1;cpu:0'" --json""",
)
_FLAGS = (("--json", "one document with all figures in bytes"),)
_SUMMARY = (
    "Say whether a model fits its devices, with how many KV tokens and requests, and the smallest changes that make\n"
    "it fit. Exit code 1 when it does not fit as it stands."
)


def run(arguments: Sequence[str]) -> int:
    """Print the plan of a deployment; returns 0 when every replica fits as it stands, else 1."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        command_help("plan", _SUMMARY, PlanConfig, _EXAMPLES, _FLAGS)
        return 0
    composed = compose("plan", flags.arguments, flags.config_dir)
    warn(composed.warnings)
    plan = plan_deployment(_planned(place(composed, flags.config_dir).replicas), composed.config.plan)
    speeds = {each.name: estimated_speed(each, composed.config.calibration) for each in plan.replicas}
    if "--json" in flags.switches:
        print(json.dumps(document(plan, speeds), indent=2, ensure_ascii=False))
    else:
        print_plan(plan, speeds)
    return 0 if plan.verdict == "fits" else 1


def _planned(replicas: Sequence[ReplicaConfig]) -> list[ReplicaConfig]:
    """Return the replicas that are started here; servers elsewhere have planned their own memory, which is told."""
    elsewhere = [each.group.name for each in replicas if each.group.url is not None]
    here = [each for each in replicas if each.group.url is None]
    if not here:
        raise ConfigError(
            f"device group {elsewhere[0]!r} is a server elsewhere, of whose memory nothing is known here; give a group "
            "`devices` in place of `url`"
        )
    warn(f"device group {name!r} is a server elsewhere, and is not planned" for name in elsewhere)
    return here
