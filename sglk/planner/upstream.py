"""What SGLang 0.5.18 chooses by itself, from the memory of a device: `ServerArgs._handle_gpu_memory_settings`."""

from dataclasses import dataclass

from sglk.config.schema import RuntimeConfig
from sglk.config.tensor_parallel import ranks_of

VERSION = "0.5.18"

_GIB_IN_MIB = 1024

_TIERS = (
    # GiB below which it counts, chunk, decode graphs' largest batch with fewer than 4 devices, and with more
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)

_LARGE_GIB, _LARGE_RESERVE_MIB = 60, 10 * 1024
"""Above so much memory at least so much is set aside."""


@dataclass(frozen=True)
class AutomaticValues:
    """Values of flags that are not given."""

    chunked_prefill_size: int
    reserved_mib: float
    mem_fraction_static: float


def automatic_values(
    memory_mib: float, runtime: RuntimeConfig, graphs: bool, chunk: int | None = None
) -> AutomaticValues:
    """Return the automatic values for a dense text model on a device of `memory_mib`, split over `tp_size`.

    `chunk` = the `chunked_prefill_size` that it is given, None = that is automatic too, -1 = no chunking.
    `graphs` = decode and prefill graphs are captured, as CUDA devices do by default. Not counted: pipelines, data
    parallel attention, DeepEP buffers, and what multimodal models and latent attention add.
    """
    _, automatic, few, many = next(tier for tier in _TIERS if memory_mib < tier[0] * _GIB_IN_MIB)
    chunk = automatic if chunk is None else chunk
    captured = (few if ranks_of(runtime) < 4 else many) if graphs else 0
    reserved = 512 + 1.5 * max(chunk if chunk > 0 else runtime.max_prefill_tokens, 2048) + 128 * ranks_of(runtime)
    reserved += 2 * captured + (8 * _prefill_graphs(chunk) if graphs else 0)
    if memory_mib > _LARGE_GIB * _GIB_IN_MIB:
        reserved = max(reserved, _LARGE_RESERVE_MIB)
    return AutomaticValues(chunk, reserved, round((memory_mib - reserved) / memory_mib, 3))


def _prefill_graphs(most: int) -> int:
    """Return how many token counts up to `most` get a graph."""
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, most, 512))
    return sum(count <= most for first, last, step in steps for count in range(first, last + 1, step))
