"""Whether a model's weights fit into its device's memory, asked before the first of them is read; if not, what does."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from sglk.backends.base import Capabilities
from sglk.backends.dtypes import TORCH_DTYPES, dtype_name, kv_cache_dtype
from sglk.backends.schemes import ON_LOAD, Quantization, on_load
from sglk.cache.kv import KVLayout
from sglk.config.schema import RuntimeConfig
from sglk.errors import CapacityError
from sglk.models.causal_lm import CausalLM
from sglk.models.part import part_of_spec, split_sizes
from sglk.models.weights import WeightSource
from sglk.parallel.ranks import RankGroup

_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Change:
    """Another precision that the same device can compute in."""

    setting: str
    """As it is written on the command line; empty = none."""
    dtype: torch.dtype
    quantization: Quantization


def check_fit(
    model: CausalLM, source: WeightSource | None, name: str, where: str, runtime: RuntimeConfig, taken: int = 0
) -> None:
    """Raise CapacityError where the weights of `model` (called `name`) leave no page of KV tokens on its device.

    They are to be read from `source`, in whose bits the device may keep them; None = they are made. `taken` bytes are
    others'. The message names the settings of which each, by itself, makes them fit.
    """
    backend, ranks = model.context.backend, model.ranks.size
    memory, need = backend.memory_info(), model.least_bytes(source)
    free, total = memory.free - taken, memory.total - taken
    beside = f" beside {_size(taken)} of other device groups" if taken else ""
    # Main memory is one for all ranks; what the others have taken of it by now is no longer free.
    shared = backend.capabilities.host_memory
    page = 0 if shared else _page_bytes(model, runtime)
    parts = f" in {ranks} parts" if ranks > 1 else ""
    precision = _precision(model) if need == model.weights_bytes else "the bits of its files"
    weights = f"the weights of model {name!r} take {_size(need * ranks)}{parts} in {precision}"
    if need > free or (shared and need * ranks > total):
        problem = f"{weights}, {where} has {_size(max(free, 0))} free of {_size(memory.total)}{beside}"
    elif need + page > total:
        problem = f"{weights}, which leaves {where} no page of {runtime.page_size} KV tokens ({_size(page)}){beside}"
    else:
        return
    planned = memory.total if runtime.device_memory_gib is None else int(runtime.device_memory_gib * _GIB)
    # Beside weights that only just fit there would be no room for requests.
    room = max(0, free if shared else min(free, int(runtime.mem_fraction_static * planned)))
    raise CapacityError(f"{problem}; use {', '.join(_ways_out(model, source, room))}")


def _ways_out(model: CausalLM, source: WeightSource | None, room: int) -> Iterator[str]:
    """Yield what makes the weights of one rank fit into `room` bytes."""
    yield "a smaller model"
    alone = _fewest_ranks(model, source, Change("", model.dtype, model.spec.quantization), room)
    for change in _changes(model):
        fewest = _fewest_ranks(model, source, change, room)
        if fewest == model.ranks.size:
            yield change.setting
        elif fewest is not None and (alone is None or fewest < alone):
            yield f"{change.setting} with runtime.tp_size={fewest}"
    if alone is not None:
        yield f"runtime.tp_size={alone}"
    yield "or a larger device"


def _changes(model: CausalLM) -> Iterator[Change]:
    capabilities, quantization = model.context.backend.capabilities, model.spec.quantization
    halves = sorted(capabilities.dtypes & {"bf16", "fp16"})
    if halves and model.dtype == torch.float32:
        yield Change(f"runtime.dtype={halves[0]}", TORCH_DTYPES[halves[0]], quantization)
    if not _is_quantised(model):
        size, experts = capabilities.int8_group_size, model.spec.moe is not None
        for kind in sorted(capabilities.quantization & ON_LOAD.keys()):
            yield Change(f"runtime.quantization={kind}", model.dtype, on_load(ON_LOAD[kind], size, experts=experts))


def _fewest_ranks(model: CausalLM, source: WeightSource | None, change: Change, room: int) -> int | None:
    """Return over how many devices the weights must be split for each part to fit; None = over none that is allowed."""
    ranks = model.ranks.size
    splits = split_sizes(model.spec).allowed() if _can_be_split(model.context.backend.capabilities) else [1]
    return next((ranks * more for more in splits if _part_bytes(model, source, change, more) <= room), None)


def _part_bytes(model: CausalLM, source: WeightSource | None, change: Change, more: int) -> int:
    """Return the weights of each of `more` parts of what `model` is."""
    spec = replace(part_of_spec(model.spec, more), quantization=change.quantization)
    ranks = RankGroup(0, model.ranks.size * more, deterministic=model.ranks.deterministic)
    return type(model)(spec, model.context.backend, change.dtype, ranks).least_bytes(source)


def _can_be_split(capabilities: Capabilities) -> bool:
    return capabilities.collectives is not None and not capabilities.host_memory


def _page_bytes(model: CausalLM, runtime: RuntimeConfig) -> int:
    spec, capabilities = model.spec, model.context.backend.capabilities
    dtype = kv_cache_dtype(runtime.kv_cache_dtype, model.dtype, capabilities)
    layout = KVLayout(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, dtype)
    return layout.bytes_per_token * runtime.page_size


def _precision(model: CausalLM) -> str:
    name = dtype_name(model.dtype)
    default = model.spec.quantization.default
    if default is not None:
        return f"{default.kind} and {name}"
    return f"{name}, partly quantised" if _is_quantised(model) else name


def _is_quantised(model: CausalLM) -> bool:
    quantization = model.spec.quantization
    return quantization.default is not None or bool(quantization.layers)


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.1f} MiB"
