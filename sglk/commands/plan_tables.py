"""The tables of `sglk plan`."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from sglk.commands.plan_speed import print_speed
from sglk.commands.terminal import console, plain_table
from sglk.planner.options import WeightOption, kv_options, weight_options
from sglk.planner.plan import DeploymentPlan, DevicePlan, ReplicaPlan
from sglk.planner.speed import Speed
from sglk.planner.upstream import VERSION

_STYLES = {"fits": "bold green", "fits with changes": "bold yellow", "cannot": "bold red"}
_SIZES_SHOWN = 8
_WAYS_SHOWN = 5


def print_plan(plan: DeploymentPlan, speeds: Mapping[str, Speed | str | None]) -> None:
    """Print every replica, then the details of each that is not like one before, then memory that several share."""
    screen = console()
    _print_replicas(plan.replicas, screen)
    shown: list[ReplicaPlan] = []
    for replica in plan.replicas:
        if not any(_alike(replica, other) for other in shown):
            shown.append(replica)
            _print_details(replica, screen, one_of_several=len(plan.replicas) > 1)
            print_speed(speeds[replica.name], screen)
    _print_shared(plan.devices, screen)


def _print_replicas(replicas: Iterable[ReplicaPlan], screen: Console) -> None:
    table = plain_table(
        "replica", "devices", "chip", "model", "weights, GiB", "KV, GiB", "KV tokens", "requests", "verdict"
    )
    for each in replicas:
        found = each.found
        table.add_row(
            each.name,
            _devices(each.config.groups[0].devices),
            each.config.chip.name,
            each.config.model.name,
            f"{_number(found.weights.total)} {found.quantization or found.dtype}",
            f"{_number(found.kv_bytes)} {found.kv_dtype}",
            str(found.kv_tokens),
            f"{found.requests(each.wanted.context_length)} x {each.wanted.context_length}",
            Text(each.verdict, style=_STYLES[each.verdict]),
        )
    screen.print(table)
    screen.print("\nweights and KV per device; requests: as many as have room at a time", style="dim")


def _print_details(plan: ReplicaPlan, screen: Console, one_of_several: bool) -> None:
    if one_of_several:
        screen.print(f"\n{plan.name}", style="bold", highlight=False)
    screen.print(f"\n{plan.verdict}: {plan.why}", style=_STYLES[plan.verdict], highlight=False)
    if plan.note is not None:
        screen.print(plan.note, highlight=False)
    for line in plan.warnings:
        screen.print(f"beware: {line}", style="yellow", highlight=False)
    _print_ways(plan, screen)
    if plan.ways and one_of_several:
        group = plan.config.groups[0].name
        note = f"for group {group!r} alone: write them, without `runtime.`, into its `runtime`, and tp_size beside that"
        screen.print(f"  {note}", style="dim", highlight=False)
    _print_memory(plan, screen)
    _print_weights(plan, screen)
    _print_kv(plan, screen)
    _print_upstream(plan, screen)


def _print_ways(plan: ReplicaPlan, screen: Console) -> None:
    if plan.ways:
        aim = "fit fewer devices" if plan.verdict == "fits" else "fit"
        screen.print(f"\nto make it {aim}, the cheapest first", style="bold")
    for way in plan.ways[:_WAYS_SHOWN]:
        screen.print("  " + " ".join(f"{key}={value}" for key, value in way.changes.items()), highlight=False)
        screen.print(f"    {'; '.join(way.why)}; {way.result.kv_tokens} KV tokens", style="dim", highlight=False)
    if plan.undeclared:
        names = " and ".join(plan.undeclared)
        note = f"{names} would fit these devices, but chip {plan.config.chip.name!r} does not declare it"
        screen.print(f"  {note}", style="dim", highlight=False)


def _print_memory(plan: ReplicaPlan, screen: Console) -> None:
    found, weights = plan.found, plan.found.weights
    kept = "kept as in the file" if plan.subject.model.keeps(found.dtype) else None
    table = plain_table("memory of one device", "GiB", "")
    plain = kept or f"always in {found.dtype}"
    if plan.subject.model.head(plan.subject.scheme) is None:
        table.add_row("embedding and head", _number(weights.embedding + weights.head), plain)
    else:
        table.add_row("embedding", _number(weights.embedding), plain)
        table.add_row("head", _number(weights.head), found.quantization)
    table.add_row("attention", _number(weights.attention), found.quantization or kept or found.dtype)
    table.add_row("feed-forward", _number(weights.feed_forward), found.quantization or kept or found.dtype)
    if weights.absorbed:
        table.add_row("absorbed", _number(weights.absorbed), "attention's matrix to keys and values once more")
    table.add_row("norms", _number(weights.norms), found.dtype)
    table.add_row("KV pool", _number(found.kv_bytes), f"{found.kv_bytes_per_token} bytes per token in {found.kv_dtype}")
    runtime = found.reserve_needed - found.activations
    estimate = f"a step needs about {_number(found.activations)}, the runtime {_number(runtime)}"
    table.add_row("reserve", _number(plan.subject.reserve(found)), estimate)
    table.add_row("planned with", _number(found.planned), f"says {plan.subject.room.source}")
    screen.print()
    screen.print(table)


def _print_weights(plan: ReplicaPlan, screen: Console) -> None:
    options = list(weight_options(plan.subject))
    sizes = sorted({option.tp_size for option in options})[:_SIZES_SHOWN]
    table = plain_table("weights per device, GiB", *(f"tp {size}" for size in sizes))
    rows: dict[tuple[str, str | None], list[WeightOption]] = {}
    for option in options:
        rows.setdefault((option.dtype, option.quantization), []).append(option)
    for (dtype, scheme), found in rows.items():
        name = (scheme or dtype) + ("" if found[0].declared else " (not on this chip)")
        weights = {option.tp_size: _number(option.weights) for option in found}
        cells = [weights.get(size, "-") for size in sizes]
        table.add_row(name, *cells, style=None if found[0].declared else "dim")
    screen.print()
    screen.print(table)


def _print_kv(plan: ReplicaPlan, screen: Console) -> None:
    table = plain_table("KV dtype", "bytes per token", "tokens", f"requests of {plan.wanted.context_length}")
    for option in kv_options(plan.subject, plan.wanted):
        table.add_row(option.dtype, str(option.bytes_per_token), str(option.tokens), str(option.requests))
    screen.print()
    screen.print(table)


def _print_upstream(plan: ReplicaPlan, screen: Console) -> None:
    if not plan.upstream:
        return
    table = plain_table(f"SGLang {VERSION}", "by itself", "with our chunk")
    table.add_row("chunked_prefill_size", *(str(each.chunked_prefill_size) for each in plan.upstream))
    table.add_row("mem_fraction_static", *(f"{each.mem_fraction_static:g}" for each in plan.upstream))
    table.add_row("reserved MiB", *(f"{each.reserved_mib:g}" for each in plan.upstream))
    table.add_row("KV tokens", *(str(plan.upstream_kv_tokens(each)) for each in plan.upstream))
    screen.print()
    screen.print(table)


def _print_shared(devices: Iterable[DevicePlan], screen: Console) -> None:
    shared = [device for device in devices if len(device.replicas) > 1]
    if not shared:
        return
    table = plain_table("shared memory", "GiB", "replicas", "fractions", "weights and KV")
    for device in shared:
        replicas = ", ".join(device.replicas)
        table.add_row(device.name, _number(device.total), replicas, f"{device.fraction:g}", _number(device.taken))
    screen.print()
    screen.print(table)


def _alike(one: ReplicaPlan, other: ReplicaPlan) -> bool:
    same = (one.config.chip, one.config.model, one.found, one.why) == (
        other.config.chip,
        other.config.model,
        other.found,
        other.why,
    )
    return same and one.config.groups[0].name == other.config.groups[0].name


def _devices(names: list[str]) -> str:
    """Return the names of devices; those in a row by the first and the last."""
    kind, _, first = names[0].rpartition(":")
    last = int(first) + len(names) - 1
    in_a_row = names == [f"{kind}:{index}" for index in range(int(first), last + 1)]
    return f"{names[0]} to {last}" if in_a_row and len(names) > 2 else ", ".join(names)


def _number(count: int) -> str:
    return f"{count / 2**30:.2f}"
