"""How many devices share a model where nobody says: the fewest on which its weights and a useful KV pool have room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sglk.config.schema import ServeConfig
from sglk.errors import ConfigError, ModelLoadError
from sglk.planner.room import IN_MAIN_MEMORY

if TYPE_CHECKING:
    from sglk.planner.footprint import Footprint

_GB = 1e9


@dataclass(frozen=True)
class Choice:
    """A number of devices, and why."""

    size: int
    why: str
    note: str | None = None
    """A line for the log; None where one device is enough, or nothing is known."""


def choose(config: ServeConfig, sizes: Sequence[int]) -> Choice:
    """Return the first of `sizes`, in ascending order, that the model can be split over and has room on.

    Room is by the engine's own count: within `mem_fraction_static` for the weights and one request of full length, or
    for the `max_total_tokens` that are given. Where no size has it, the first one on which the engine starts at all;
    else 1, on which the engine says what is too small. What `config` has as `runtime.tp_size` does not matter.
    """
    if config.backend.name == IN_MAIN_MEMORY:
        return Choice(1, "main memory is one for all devices")
    # Whatever else a plan takes is needed only where there is something to choose.
    from sglk.planner.model import model_of
    from sglk.planner.room import room_of
    from sglk.planner.ways import Subject

    try:
        subject = Subject(model_of(config), config.chip, room_of(config), config.runtime)
        legal = subject.tp_sizes()
        found = [subject.footprint(replace(config.runtime, tp_size=size)) for size in sizes if size in legal]
    except (ConfigError, ModelLoadError) as error:
        return Choice(1, f"nothing can be planned: {error}")
    context_length = config.runtime.context_length or subject.model.spec.max_position_embeddings
    useful = [each for each in found if _is_useful(each, config, context_length)]
    starting = useful or [each for each in found if each.problem is None]
    if not starting:
        return Choice(1, f"{config.model.name} has no room on {max(sizes)} devices either")
    if starting[0].tp_size == 1:
        return Choice(1, "one device has room")
    why = _why(found[0], config, context_length)
    size = starting[0].tp_size
    return Choice(size, why, f"{why}: serving on {size} devices (runtime.tp_size={size})")


def _is_useful(found: "Footprint", config: ServeConfig, context_length: int) -> bool:
    if found.problem is not None:
        return False
    return config.runtime.max_total_tokens is not None or found.requests(context_length) > 0


def _why(found: "Footprint", config: ServeConfig, context_length: int) -> str:
    """Say what one device, of which `found` tells, is too small for."""
    asked = config.runtime.max_total_tokens
    tokens, budget = asked or context_length, found.static if asked is None else found.planned
    needed, of_what = found.weights.total, ""
    if needed < budget:
        needed, of_what = needed + found.bytes_for(tokens), f" for weights and {tokens} KV tokens"
    model = f"{config.model.name} in {found.quantization or found.dtype}"
    return f"{model} needs {needed / _GB:.1f} GB a device{of_what}, {config.chip.name} plans {budget / _GB:.1f} GB"
