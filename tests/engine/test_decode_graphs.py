"""Decode steps launched as recorded graphs give the tokens of steps that are computed kernel by kernel."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends import reference
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.models.loader import load_model
from sglk.testing.contract.execution_tests import ExecutionTests
from sglk.testing.contract.serving_tests import ServingTests
from sglk.testing.tiny import write_tiny_model
from tests.engine.recording import RecordingBackend
from tests.engine.scheduling import Rig, answer

PROMPTS = {
    name: [(7 * length + 11 * place) % 256 for place in range(length)]
    for name, length in (("a", 30), ("b", 3), ("c", 61), ("d", 17), ("e", 59))
}


class TestServingByGraphs(ExecutionTests, ServingTests):
    def make_backend(self, **options: Any) -> RecordingBackend:
        return RecordingBackend(**options)


def rig(folder: Path, backend: RecordingBackend | None = None, **settings: Any) -> tuple[Rig, RecordingBackend]:
    backend = backend or RecordingBackend()
    runtime = RuntimeConfig(**settings)
    model = load_model(ModelConfig(name="tiny", path=str(folder)), runtime, backend).model
    return Rig(pool_tokens=1024, runner=ModelRunner(model, backend, runtime), page_size=4, **settings), backend


def answers(one: Rig, names: str = "abcde") -> dict[str, list[int]]:
    requests = {name: one.add(name, PROMPTS[name]) for name in names}
    one.finish()
    return {name: answer(request) for name, request in requests.items()}


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"kv_cache_dtype": "int8"}),
        ("LlamaForCausalLM", {"quantization": "w8a8"}),
        ("MistralForCausalLM", {}),
    ],
)
def test_tokens_are_those_of_kernels_launched_one_by_one(
    tmp_path: Path, architecture: str, settings: dict[str, Any]
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, sliding_window=24)
    recorded, backend = rig(folder, **settings)
    plain, silent = rig(folder, disable_cuda_graph=True, **settings)

    assert answers(recorded) == answers(plain)
    # Rows grow beyond 64 tokens on the way, and the last step of some has no room for others.
    assert len(backend.tapes) >= 2
    assert sum(tape.replays for tape in backend.tapes) >= 5
    assert not silent.tapes
    assert any(dict(choice.traits).get("recorded") for choice in backend.ops.choices())


def test_fewer_rows_than_a_graph_has_are_filled_up(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    recorded, backend = rig(folder)
    plain, _ = rig(folder, disable_cuda_graph=True)
    assert answers(recorded, "abcd") == answers(plain, "abcd")
    four = len(backend.tapes)
    recorded.cache.flush()
    assert answers(recorded, "bcd") == answers(plain, "bcd")
    assert len(backend.tapes) == four


def test_a_model_that_cannot_be_recorded_is_computed_kernel_by_kernel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_model(tmp_path, architecture="Qwen2MoeForCausalLM")
    with caplog.at_level(logging.WARNING):
        recorded, backend = rig(folder)
        plain, _ = rig(folder, disable_cuda_graph=True)
        assert answers(recorded) == answers(plain)
    assert not backend.tapes
    warnings = [record.getMessage() for record in caplog.records if "kernel by kernel" in record.getMessage()]
    assert warnings == [
        "decode steps are launched kernel by kernel: the host reads from the device while a graph is recorded"
    ]


def test_a_new_pool_gets_new_graphs(tmp_path: Path) -> None:
    recorded, backend = rig(write_tiny_model(tmp_path))
    expected = answers(recorded, "ab")
    tapes = len(backend.tapes)
    recorded.cache.flush()
    recorded.runner.allocate_kv(recorded.pool.num_pages, recorded.pool.page_size)
    assert answers(recorded, "ab") == expected
    assert len(backend.tapes) == 2 * tapes


def test_nan_in_a_recorded_step_is_traced_and_a_quarantine_reaches_the_graphs(tmp_path: Path) -> None:
    backend = RecordingBackend()
    faulty = torch.zeros(())

    def shaky(x_T2F: torch.Tensor) -> torch.Tensor:
        y_TF = reference.silu_and_mul.reference(x_T2F)
        return torch.where(faulty * torch.ones(len(y_TF), 1) > torch.arange(len(y_TF)).unsqueeze(1), torch.nan, y_TF)

    backend.ops.register(reference.silu_and_mul, "shaky", shaky)
    folder = write_tiny_model(tmp_path)
    one, _ = rig(folder, backend)
    one.runner._quarantines = True
    expected = answers(one, "abc")
    one.cache.flush()

    requests = {name: one.add(name, PROMPTS[name]) for name in "abc"}
    one.step()
    one.step()
    faulty.fill_(1)
    one.step()
    first, *others = requests.values()
    assert first.finish is not None
    assert "op silu_and_mul of shaky" in (first.finish.message or "")
    one.finish()
    # The others go on by the next implementation, though the graphs were recorded with the faulty one.
    assert [answer(request) for request in others] == [expected[name] for name in "bc"]
