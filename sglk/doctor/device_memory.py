"""Checks of the devices themselves: that each can be made, moves a tensor, and has room for the model."""

from collections.abc import Iterator
from typing import Any

from sglk.backends.finding import Finding, fail, ok, warn
from sglk.config.model_argument import tune_command
from sglk.config.schema import ServeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.doctor.children import ask
from sglk.doctor.deployment import Deployment, weights_bytes
from sglk.doctor.sentence import parted
from sglk.errors import RunError

_GIB = 2**30


def check_device_memory(deployment: Deployment, backend: str) -> Iterator[Finding]:
    """Make each device of one backend in a child process, and look at its memory."""
    wanted = {name: (config, rank) for name, config, rank in deployment.each_device(backend)}
    try:
        questions = [(name, *rest) for name, rest in wanted.items()]
        answers = ask("devices", questions, environment=deployment.environment(backend))
    except RunError as error:
        yield fail("device", f"making the devices ends the process: {error}", "look at the driver's own log, and dmesg")
        return
    for name, answer in answers.items():
        if "error" in answer:
            why, todo = parted(answer["error"])
            yield fail("device", f"{name}: {why}", todo or "see the findings on devices")
        else:
            yield from device_findings(wanted[name][0], name, answer)


def device_findings(config: ServeConfig, device: str, answer: dict[str, Any]) -> Iterator[Finding]:
    """Judge what a child process says of one device: its memory against the model, its name against the profile."""
    yield _room(config, f"{device} ({answer['name']})", answer["total"], answer["free"])
    yield from _measured_on(config, answer["name"])


def _room(config: ServeConfig, device: str, total: int, free: int) -> Finding:
    runtime, weights = config.runtime, weights_bytes(config)
    planned = total if runtime.device_memory_gib is None else runtime.device_memory_gib * _GIB
    # A pool of given size takes what it needs beside the weights, whatever the fraction.
    wanted = planned * (1.0 if runtime.max_total_tokens else runtime.mem_fraction_static)
    need = 0.0 if weights is None else weights / ranks_of(runtime)
    sizes = f"{device}: {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if need > wanted:
        return fail(
            "device memory",
            f"{sizes}; the weights of {config.model.name} take about {need / _GIB:.1f}, more than the"
            f" {wanted / _GIB:.1f} of runtime.mem_fraction_static={runtime.mem_fraction_static:g}",
            "raise runtime.tp_size, quantise (runtime.quantization), or take a smaller model",
        )
    if need > free:
        return fail("device memory", f"{sizes}; the weights take about {need / _GIB:.1f}", "end what holds the rest")
    if free < wanted and not runtime.max_total_tokens:
        return warn(
            "device memory",
            f"{sizes}, less than runtime.mem_fraction_static={runtime.mem_fraction_static:g} asks for",
            "end what holds the rest, or lower the fraction",
        )
    return ok("device memory", sizes)


def _measured_on(config: ServeConfig, name: str) -> Iterator[Finding]:
    measured = config.profile.chip.device if config.profile else None
    if measured is not None and measured != name:
        yield warn(
            "profile",
            f"the tuned profile was measured on {measured!r}, this device is {name!r}",
            f"tune on this one: {tune_command(config)}",
        )
