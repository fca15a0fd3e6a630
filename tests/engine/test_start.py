"""A deployment that does not fit says so before it serves, and the setting that it advises works."""

import re
from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.engine.engine import Engine
from sglk.engine.messages import SamplingParams
from sglk.errors import CapacityError
from sglk.testing.tiny import tiny_config, tiny_weights, write_tiny_model
from tests.engine.receiving import submit

CONTEXT = tiny_config()["max_position_embeddings"]
WEIGHTS = sum(array.nbytes for array in tiny_weights(tiny_config()).values())
TOKEN = 2 * 2 * 2 * 16 * 4
"""Bytes of one token's KV: key and value, layers, heads, head width, fp32."""
DEVICE = 4 * 2**20
HALF_A_TOKEN = (WEIGHTS + TOKEN / 2) / DEVICE
"""Fraction that leaves room for the weights and less than a page of any size."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def engine(model: Path, fraction: float, page_size: int = 16) -> Engine:
    words = [f"model={model}", "profiles=none", "runtime.num_threads=1", f"runtime.page_size={page_size}"]
    words += [f"runtime.device_memory_gib={DEVICE / 2**30}", f"runtime.mem_fraction_static={fraction}"]
    return Engine.from_config(compose("serve", words).config)


@pytest.mark.parametrize("page_size", [1, 16, 128])
@pytest.mark.parametrize("fraction", [0.05, HALF_A_TOKEN])
def test_memory_that_does_not_suffice_is_refused_with_the_fraction_that_does(
    model: Path, fraction: float, page_size: int
) -> None:
    with pytest.raises(CapacityError) as caught:
        engine(model, fraction, page_size)
    message = str(caught.value)

    for number in (int(fraction * DEVICE), WEIGHTS, TOKEN):
        assert re.search(rf"\b{number}\b", message), message
    assert "lower" not in message
    advised = re.search(r"raise it to ([0-9.]+) or more", message)
    assert advised is not None, message

    serving = engine(model, float(advised.group(1)), page_size)
    serving.start()
    try:
        answer = submit(serving, "full", [1] * (CONTEXT - 20), SamplingParams(temperature=0.0, ignore_eos=True))
        answer.wait()
        assert len(answer.token_ids) == 20
    finally:
        serving.shutdown()
