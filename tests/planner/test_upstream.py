"""The automatic values of SGLang 0.5.18, as its own `_handle_gpu_memory_settings` returns them."""

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.planner.upstream import automatic_values


@pytest.mark.parametrize(
    ("gib", "tp_size", "graphs", "chunk", "fraction"),
    [
        (24, 1, True, 2048, 0.833),
        (24, 4, True, 2048, 0.813),
        (32, 1, False, 2048, 0.887),
        (40, 1, True, 4096, 0.823),
        (40, 4, False, 4096, 0.825),
        (80, 1, True, 8192, 0.83),
        (80, 4, True, 8192, 0.819),
        (80, 1, False, 8192, 0.842),
        (192, 1, True, 16384, 0.864),
        (192, 4, False, 16384, 0.87),
    ],
)
def test_chunk_and_fraction(gib: int, tp_size: int, graphs: bool, chunk: int, fraction: float) -> None:
    values = automatic_values(gib * 1024, RuntimeConfig(tp_size=tp_size), graphs)
    assert (values.chunked_prefill_size, values.mem_fraction_static) == (chunk, fraction)


def test_large_devices_set_ten_gib_aside_at_least() -> None:
    runtime = RuntimeConfig(tp_size=2)
    assert automatic_values(80 * 1024, runtime, graphs=False, chunk=2048).reserved_mib == 10 * 1024
    assert automatic_values(80 * 1024, runtime, graphs=False, chunk=2048).mem_fraction_static == 0.875
    assert automatic_values(60 * 1024, runtime, graphs=False, chunk=2048).reserved_mib == 512 + 1.5 * 2048 + 256


def test_without_chunks_a_step_takes_all_prefill_tokens() -> None:
    runtime = RuntimeConfig(max_prefill_tokens=16384)
    assert automatic_values(40 * 1024, runtime, graphs=True, chunk=-1).reserved_mib == 512 + 1.5 * 16384 + 128 + 64
