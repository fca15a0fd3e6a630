"""`sglk simulate`: a deployment under a workload, on a virtual clock, without the device."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from sglk.bench.record import GroupRecord, Record
from sglk.bench.table import show
from sglk.commands.flags import common_flags
from sglk.commands.help import command_help
from sglk.commands.record_file import check_output, command_line, save, why_invalid
from sglk.commands.terminal import console, plain_table, warn
from sglk.config.compose import Composed, compose
from sglk.config.fleet import ReplicaConfig
from sglk.config.simulate_schema import SimulateConfig
from sglk.errors import ConfigError, RunError
from sglk.planner.placement import place
from sglk.simulation.run import simulate

_EXAMPLES = (
    "sglk simulate chip=l20 model=qwen32b runtime.tp_size=2 workload=long_prompt",
    "sglk simulate chip=h100 model=qwen7b workload=azure workload.file=conv.csv simulate.replicas=4",
    "sglk simulate chip=a100_80g model=qwen7b workload=random workload.arrival=poisson workload.rate=8 --json",
    """sglk simulate chip=h100 model=qwen7b groups='[{devices: "cuda:0", weight: 80}, {chip: l20, devices: "cuda:1", """
    """weight: 20}]'""",
)
_FLAGS = (("--json", "print the record in place of the tables, and keep no file unless bench.output names one"),)
_SUMMARY = (
    "Let the real scheduler, prefix cache, memory plan and router serve a workload on a virtual clock. Steps take the\n"
    "time of a calibration of the chip (`sglk calibrate`), else of its peak figures."
)


def run(arguments: Sequence[str]) -> int:
    """Simulate, print the figures and write the record; returns 1 when too many requests failed."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        command_help("simulate", _SUMMARY, SimulateConfig, _EXAMPLES, _FLAGS)
        return 0
    composed: Composed[SimulateConfig] = compose("simulate", flags.arguments, flags.config_dir)
    config = composed.config
    written = config.bench.output is not None or "--json" not in flags.switches
    if written:
        check_output(config.bench.output)
    warn(composed.warnings)
    replicas = _replicas(composed, flags.config_dir)
    started, began = datetime.now(timezone.utc), time.perf_counter()
    command = command_line("simulate", arguments)
    record = simulate(config, replicas, calibration=config.calibration, what_if=config.simulate, command=command)
    taken_s = time.perf_counter() - began
    record.server.profile = str(composed.profile_path) if composed.profile_path else None
    try:
        _show(record, taken_s, as_json="--json" in flags.switches)
    finally:
        path = save(record, config.bench.output, started) if written else None
    if "--json" not in flags.switches:
        print(f"record: {path}")
    if not record.valid:
        raise RunError(why_invalid(record))
    return 0


def _replicas(composed: Composed[SimulateConfig], config_dir: str | Path | None) -> list[ReplicaConfig]:
    """Return the replicas of the deployment, or of its one replica as many as `simulate.replicas` says."""
    placed = place(composed, config_dir, elsewhere=True).replicas
    for each in placed:
        if each.group.url is not None:
            raise ConfigError(f"device group {each.group.name!r} is a server elsewhere, which cannot be simulated")
    count = composed.config.simulate.replicas
    if count is None:
        return placed
    if len(placed) > 1 or any(word.lstrip("+").startswith("groups") for word in composed.words):
        raise ConfigError(
            "simulate.replicas and groups both say how many replicas there are; name all devices in groups, or leave "
            "groups out"
        )
    return [_beside(placed[0], number) for number in range(count)]


def _beside(replica: ReplicaConfig, number: int) -> ReplicaConfig:
    """Return the replica of that number, on devices of its own."""
    (group,) = replica.config.groups
    kind, size = group.devices[0].partition(":")[0], len(group.devices)
    devices = [f"{kind}:{index}" for index in range(number * size, (number + 1) * size)]
    config = replace(replica.config, groups=[replace(group, devices=devices)])
    return replace(replica, name=f"{replica.group.name}/{number}", config=config)


def _show(record: Record, taken_s: float, as_json: bool) -> None:
    if as_json:
        print(record.to_json(), flush=True)
        return
    _print(record, taken_s, console())


def _print(record: Record, taken_s: float, screen: Console) -> None:
    screen.print(show(record))
    groups = record.simulated_groups or []
    table = plain_table(
        "group", "chip", "replicas x devices", "requests", "busy", "tokens/s", "KV tokens", "hit rate", "retracted"
    )
    for group in groups:
        table.add_row(*_cells(group))
    screen.print()
    screen.print(table)
    for line in dict.fromkeys(map(_basis, groups)):
        screen.print(line, style="dim", highlight=False)
    speed = record.duration_s / taken_s
    screen.print(
        f"{record.duration_s:.1f} s of service in {taken_s:.2f} s, {speed:,.0f} times as fast",
        style="dim",
        highlight=False,
    )


def _cells(group: GroupRecord) -> list[str]:
    output, hits = group.summary["output_throughput"], group.engine_stats.get("cache_hit_rate")
    return [
        group.name,
        group.chip,
        f"{group.replicas} x {group.devices // group.replicas}",
        str(group.requests),
        f"{group.busy_share:.0%}",
        "-" if output is None else f"{output:,.1f}",
        f"{group.kv_capacity_tokens:,}",
        "-" if hits is None else f"{hits:.1%}",
        f"{group.engine_stats['retractions']:g}",
    ]


def _basis(group: GroupRecord) -> str:
    cost = group.cost
    if cost.kind == "roofline":
        return f"times on {group.chip}: roofline, not calibrated"
    error = "" if cost.error is None else f", steps within {cost.error:.1%} (median of its cross-validation)"
    return f"times on {group.chip}: calibration {cost.name}{error}"
