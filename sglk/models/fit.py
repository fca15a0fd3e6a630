"""Whether a model's weights fit into its device's memory: asked before the first of them is read."""

from collections.abc import Iterator

import torch

from sglk.backends.base import Capabilities
from sglk.backends.dtypes import dtype_name
from sglk.errors import CapacityError
from sglk.models.causal_lm import CausalLM

_GIB = 2**30
_MIB = 2**20


def check_fit(model: CausalLM, name: str, where: str) -> None:
    """Raise CapacityError where the weights of `model` (called `name`) are larger than the memory of its device."""
    backend, ranks = model.context.backend, model.ranks.size
    memory, need = backend.memory_info(), model.weights_bytes
    # Main memory is one for all ranks; what the others have taken of it by now is no longer free.
    together = need * ranks if backend.capabilities.host_memory else need
    if need <= memory.free and together <= memory.total:
        return
    parts = f" in {ranks} parts" if ranks > 1 else ""
    ways = ", ".join(_ways_out(model, memory.free, backend.capabilities))
    raise CapacityError(
        f"the weights of model {name!r} take {_size(need * ranks)}{parts} in {_precision(model)}, {where} has "
        f"{_size(memory.free)} free of {_size(memory.total)}; use {ways}"
    )


def _ways_out(model: CausalLM, free: int, capabilities: Capabilities) -> Iterator[str]:
    yield "a smaller model"
    halves = sorted(capabilities.dtypes & {"bf16", "fp16"})
    if halves and model.dtype == torch.float32 and model.weights_bytes <= 2 * free:
        yield f"runtime.dtype={halves[0]}"
    if capabilities.quantization and not _is_quantised(model):
        yield f"runtime.quantization={' or '.join(sorted(capabilities.quantization))}"
    if capabilities.collectives is not None and not capabilities.host_memory:
        yield f"runtime.tp_size={_fewest_ranks(model, free)} or more"
    yield "or a larger device"


def _fewest_ranks(model: CausalLM, free: int) -> int:
    """Return the smallest number of devices that might do; what each of them has in full makes it more."""
    ranks = model.ranks.size
    return max(ranks + 1, -(-model.weights_bytes * ranks // max(free, 1)))


def _precision(model: CausalLM) -> str:
    name = dtype_name(model.dtype)
    return f"{name}, partly quantised" if _is_quantised(model) else name


def _is_quantised(model: CausalLM) -> bool:
    quantization = model.spec.quantization
    return quantization.default is not None or bool(quantization.layers)


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.1f} MiB"
