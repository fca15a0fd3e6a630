"""What a chip's file does not say, and what is assumed of an imagined chip in its place."""

from dataclasses import replace
from typing import Any

from sglk.config.schema import ChipConfig

ASSUMED: dict[str, Any] = {
    "memory_gib": 16.0,
    "bandwidth_gb_s": 100.0,
    "interconnect_gb_s": 25.0,
    "dtypes": ["bf16", "fp16", "fp32"],
}
"""A desktop processor's memory, and a PCIe 4.0 x16 link in practice."""

ASSUMED_TFLOPS = 5.0


def imagined(chip: ChipConfig) -> tuple[ChipConfig, list[str]]:
    """Return `chip` with all figures that a simulation needs, and those of them that its file does not have."""
    missing = {name: value for name, value in ASSUMED.items() if not getattr(chip, name)}
    chip = replace(chip, **missing)
    if not chip.peak_tflops:
        missing["peak_tflops"] = ASSUMED_TFLOPS
        chip = replace(chip, peak_tflops=dict.fromkeys(chip.dtypes, ASSUMED_TFLOPS))
    return chip, [f"chip.{name}={value}" for name, value in missing.items()]
