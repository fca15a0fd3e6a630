import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglk.backends.base import Capabilities, MemoryInfo
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.sim import SimBackend
from sglk.config.schema import ChipConfig, ModelConfig, RuntimeConfig
from sglk.errors import CapacityError
from sglk.models.dummy_weights import DummyWeights
from sglk.models.loader import load_model
from sglk.parallel.ranks import RankGroup
from sglk.testing.tiny import write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf
from tests.models.test_loader import load

needs_kernels = pytest.mark.skipif(isinstance(kernels(), str), reason="there is no C compiler")

GIB = 2**30
LARGE: dict[str, Any] = {
    "architecture": "Qwen2ForCausalLM",
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}


class Small(CpuBackend):
    """A device with some memory, and no other memory behind it."""

    capabilities = Capabilities(
        dtypes=frozenset({"fp32", "bf16"}),
        kv_cache_dtypes=frozenset({"fp32", "bf16"}),
        quantization=frozenset({"w8a8"}),
        collectives="gloo",
    )

    def __init__(self, free: int, **options: Any) -> None:
        super().__init__(num_threads=1, **options)
        self._free = free

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(total=24 * GIB, free=self._free)


def without_kernels(free: int) -> Small:
    return Small(free, kernels="none")


@pytest.fixture
def no_weights_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(_: DummyWeights, name: str) -> None:
        raise AssertionError(f"{name} was made")

    monkeypatch.setattr(DummyWeights, "get", get)


@pytest.mark.usefixtures("no_weights_are_made")
def test_a_model_larger_than_the_device_is_refused_before_its_weights_are_made() -> None:
    model, runtime = ModelConfig(name="qwen32b", **LARGE), RuntimeConfig(load_format="dummy")
    with pytest.raises(CapacityError) as caught:
        load_model(model, runtime, Small(20 * GIB), "device 0")
    assert str(caught.value) == (
        "the weights of model 'qwen32b' take 122.1 GiB in fp32, device 0 has 20.0 GiB free of 24.0 GiB; use a smaller "
        "model, runtime.dtype=bf16 with runtime.tp_size=4, runtime.quantization=w8a8 with runtime.tp_size=4, or a "
        "larger device"
    )


@pytest.mark.usefixtures("no_weights_are_made")
def test_what_is_done_already_is_not_advised() -> None:
    model = ModelConfig(name="qwen32b", **LARGE)
    runtime = RuntimeConfig(load_format="dummy", dtype="bf16", quantization="w8a8")
    with pytest.raises(CapacityError, match=r"in w8a8 and bf16, .* use a smaller model, runtime.tp_size=2, or"):
        load_model(model, runtime, Small(20 * GIB))


def imagined() -> SimBackend:
    chip = ChipConfig(name="x", memory_gib=32, dtypes=["fp16"], quantization=["w8a8_int8"])
    return SimBackend(chip=chip)


@pytest.mark.parametrize(
    ("quantization", "problem", "advice"),
    [
        (None, "32.0 GiB free of 32.0 GiB", ["runtime.quantization=w8a8 with runtime.tp_size=2", "runtime.tp_size=4"]),
        ("w8a8", r"leaves device 0 no page of 128 KV tokens \(32.0 MiB\)", ["runtime.tp_size=2"]),
    ],
)
def test_each_way_that_is_advised_leads_to_a_model_that_fits(
    quantization: str | None, problem: str, advice: list[str]
) -> None:
    model = ModelConfig(name="qwen32b", **LARGE)
    runtime = RuntimeConfig(quantization=quantization, page_size=128, mem_fraction_static=0.75)
    with pytest.raises(CapacityError, match=problem) as caught:
        load_model(model, runtime, imagined(), "device 0")
    ways = str(caught.value).partition("; use a smaller model, ")[2].removesuffix(", or a larger device")
    assert ways.split(", ") == advice
    for way in advice:
        settings = dict(re.findall(r"runtime\.(\w+)=(\w+)", way))
        changed = replace(runtime, quantization=settings.get("quantization", quantization))
        ranks = RankGroup(0, int(settings["tp_size"]))
        assert load_model(model, changed, imagined(), "device 0", ranks).model.weights_bytes < 0.75 * 32 * GIB


def test_weights_that_just_fit_are_loaded(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    need = load(folder).model.weights_bytes
    model, runtime = ModelConfig(name="tiny", path=str(folder)), RuntimeConfig()

    assert load_model(model, runtime, Small(need)).model.weights_bytes == need
    with pytest.raises(CapacityError, match=r"take 0\.\d MiB in fp32, .* a smaller model, runtime\.dtype=bf16, "):
        load_model(model, runtime, Small(need - 1))


@needs_kernels
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
def test_a_file_whose_bits_fit_is_loaded_where_its_numbers_in_fp32_would_not(tmp_path: Path, kind: str) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quantization=kind, **sizes)
    model = ModelConfig(name="tiny", path=str(file))
    in_fp32 = load_model(model, RuntimeConfig(), without_kernels(20 * GIB)).model.weights_bytes
    kept = load_model(model, RuntimeConfig(), Small(20 * GIB)).model.weights_bytes

    assert kept < 0.7 * in_fp32
    assert load_model(model, RuntimeConfig(), Small(kept)).model.weights_bytes == kept
    with pytest.raises(CapacityError, match=r"take \d\.\d MiB in the bits of its files, device 0 has \d\.\d MiB free"):
        load_model(model, RuntimeConfig(), Small(kept - 1), "device 0")
    with pytest.raises(CapacityError, match=r"take \d\.\d MiB in fp32, device 0 has "):
        load_model(model, RuntimeConfig(), without_kernels(kept), "device 0")
