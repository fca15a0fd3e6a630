"""`sglk chips`: the chips and their figures."""

import json
from dataclasses import asdict
from typing import Any

from sglk.commands.flags import CommonFlags, common_flags
from sglk.commands.terminal import console, plain_table
from sglk.config.catalogue import Chip, Listing, chips
from sglk.config.schema import ChipConfig
from sglk.errors import ConfigError

_HELP = """\
usage: sglk chips [--json] [--config-dir DIR]

List the chips that `chip=` accepts: memory, bandwidth, peak dense rates, capability limits and default runtime values.
A figure with `?` is claimed or unverified; --json gives the source and quality of each.

examples
  sglk chips
  sglk chips --json"""

_DOUBTFUL = ("claimed", "unverified")


def run(arguments: list[str]) -> int:
    """Print a table, or JSON with every figure's source."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        print(_HELP)
        return 0
    no_arguments("chips", flags)
    found = chips(flags.config_dir)
    if "--json" in flags.switches:
        print(json.dumps([{**asdict(chip.config), "runtime": chip.runtime} for chip in found.entries], indent=2))
    else:
        _print(found.entries)
    refuse_problems(found)
    return 0


def no_arguments(command: str, flags: CommonFlags) -> None:
    """Raise ConfigError when words are left that a listing command has no use for."""
    if flags.arguments:
        raise ConfigError(f"`sglk {command}` takes no {flags.arguments[0]!r}; see `sglk {command} --help`")


def refuse_problems(listing: Listing[Any]) -> None:
    """Raise ConfigError that names the files which a listing had to leave out."""
    if listing.problems:
        raise ConfigError("; ".join(listing.problems))


def _print(found: list[Chip]) -> None:
    table = plain_table("chip", "GiB", "GB/s", "TFLOPS", "8 bit", "backend", "KV dtypes", "pages", "chunk", "fraction")
    for chip in found:
        config = chip.config
        table.add_row(
            config.name,
            _figure(config, "memory_gib", config.memory_gib, "asked"),
            _figure(config, "bandwidth_gb_s", config.bandwidth_gb_s),
            _figure(config, "peak_tflops", config.peak_tflops.get("bf16") or config.peak_tflops.get("fp16")),
            _figure(config, "peak_tflops", config.peak_tflops.get("fp8") or config.peak_tflops.get("int8")),
            config.backend,
            ", ".join(config.kv_cache_dtypes),
            ", ".join(map(str, config.page_sizes)) or "any",
            str(chip.runtime.get("chunked_prefill_size", "-")),
            str(chip.runtime.get("mem_fraction_static", "-")),
        )
    screen = console()
    screen.print(table)
    screen.print("\nTFLOPS: dense bf16 or fp16; 8 bit: fp8 or int8", style="dim")
    screen.print("? = claimed or unverified; `sglk chips --json` names the source of every figure", style="dim")


def _figure(chip: ChipConfig, name: str, value: float | None, unknown: str = "-") -> str:
    if value is None:
        return unknown
    source = chip.figures.get(name)
    return f"{value:g}{'?' if source is None or source.quality in _DOUBTFUL else ''}"
