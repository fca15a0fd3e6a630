"""Decode steps of the cpu backend, recorded and repeated as one call, are those that Python would make."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends import reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import Denial, Op
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine import decode_graphs
from sglk.engine.decode_graphs import DecodeGraphs
from sglk.engine.runner import ModelRunner
from sglk.engine.step import Step
from sglk.errors import BackendError
from sglk.models.loader import load_model
from sglk.testing.tiny import write_tiny_model
from tests.engine.scheduling import Rig, answer

PROMPTS = {
    name: [(7 * length + 11 * place) % 256 for place in range(length)]
    for name, length in (("a", 30), ("b", 3), ("c", 61), ("d", 17), ("e", 59))
}


def rig(
    folder: Path,
    offered: tuple[Op[..., Any], str] | None = None,
    deny: Denial | None = None,
    threads: int = 1,
    **settings: Any,
) -> Rig:
    backend = CpuBackend(num_threads=threads, deny=[deny] if deny else [])
    runtime = RuntimeConfig(**settings)
    if offered is not None:
        backend.ops.register(offered[0], offered[1], offered[0].reference)
    if not backend.capabilities.graph_capture:
        pytest.skip("there is no C compiler")
    model = load_model(ModelConfig(name="tiny", path=str(folder)), runtime, backend).model
    return Rig(pool_tokens=1024, runner=ModelRunner(model, backend, runtime), page_size=4, **settings)


def answers(one: Rig, names: str = "abcde") -> dict[str, list[int]]:
    requests = {name: one.add(name, PROMPTS[name]) for name in names}
    one.finish()
    return {name: answer(request) for name, request in requests.items()}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What each recorded step was: whether it was repeated, and its rows; its logits are held to those of Python."""
    seen = []
    logits_of = DecodeGraphs.logits

    def compared(self: DecodeGraphs, step: Step) -> torch.Tensor:
        repeated = self._shape(step) in self._recorded
        logits_BV = logits_of(self, step)
        if self._works:
            seen.append((repeated, len(step.ids_T)))
        assert torch.equal(logits_BV, self.computed(step))
        return logits_BV

    monkeypatch.setattr(DecodeGraphs, "logits", compared)
    return seen


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"kv_cache_dtype": "int8"}),
        ("Qwen3ForCausalLM", {"quantization": "w8a8"}),
        ("Qwen2ForCausalLM", {"quantization": "w4a16"}),
        ("MistralForCausalLM", {}),
    ],
)
def test_logits_are_those_of_calls_from_python(
    tmp_path: Path, architecture: str, settings: dict[str, Any], steps: list[tuple[bool, int]]
) -> None:
    one = rig(write_tiny_model(tmp_path, architecture=architecture, sliding_window=24), **settings)
    alone = {name: answers(one, name)[name] for name in PROMPTS}
    one.cache.flush()
    assert answers(one, "abc") | answers(one, "de") == alone
    # Each number of rows is recorded once, though all work in the same memory, and then only repeated.
    recorded = [rows for repeated, rows in steps if not repeated]
    assert len(recorded) == len(set(recorded)) >= 3
    assert sum(repeated for repeated, _ in steps) > 20


@pytest.mark.parametrize("settings", [{}, {"quantization": "w8a8", "kv_cache_dtype": "int8"}])
def test_steps_recorded_on_several_threads_are_those_of_one(
    tmp_path: Path, settings: dict[str, Any], steps: list[tuple[bool, int]]
) -> None:
    folder = write_tiny_model(tmp_path)
    expected = answers(rig(folder, **settings))
    assert answers(rig(folder, threads=3, **settings)) == expected
    assert sum(repeated for repeated, _ in steps) > 10


def test_the_graph_used_longest_ago_makes_way(
    tmp_path: Path, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "MAX_GRAPHS", 2)
    one = rig(write_tiny_model(tmp_path))
    expected = answers(one, "a")
    answers(one, "ab")
    answers(one, "abc")
    one.cache.flush()
    assert answers(one, "a") == expected
    assert [rows for repeated, rows in steps if not repeated] == [1, 2, 3, 1]


def test_graphs_share_their_memory(tmp_path: Path) -> None:
    one = rig(write_tiny_model(tmp_path))
    answers(one, "abcde")
    room = one.runner.backend._calls.room
    held = sum(len(block) for block in room._blocks.values())
    for names in ("a", "ab", "abc", "abcd"):
        one.cache.flush()
        answers(one, names)
    assert sum(len(block) for block in room._blocks.values()) == held
    assert sum(len(free) for free in room._free.values()) == len(room._blocks)


def test_switched_off_nothing_is_recorded(tmp_path: Path, steps: list[tuple[bool, int]]) -> None:
    answers(rig(write_tiny_model(tmp_path), disable_cuda_graph=True), "ab")
    assert not steps


@pytest.mark.parametrize(
    ("architecture", "settings", "reason"),
    [
        ("MixtralForCausalLM", {}, "the host reads from the device while a graph is recorded"),
        ("LlamaForCausalLM", {"dtype": "bf16"}, "tensors of 16 bits are widened between kernels; dtype=fp32 is faster"),
    ],
)
def test_what_cannot_be_repeated_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str, settings: dict[str, Any], reason: str
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture)
    with caplog.at_level(logging.INFO):
        one = rig(folder, **settings)
        got = answers(one, "ab")
    assert got == answers(rig(folder, disable_cuda_graph=True, **settings), "ab")
    told = [record for record in caplog.records if "kernel by kernel" in record.getMessage()]
    # It is nothing that anybody has to do something about.
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("INFO", f"decode steps are launched kernel by kernel: {reason}")
    ]


def test_a_step_that_is_mostly_torchs_is_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_tiny_model(tmp_path)
    denied = Denial("linear_w8a16", "cpu_kernels", "to see what torch makes of it")
    with caplog.at_level(logging.INFO):
        answers(rig(folder, deny=denied, quantization="w8a16"), "ab")
    assert "calls of torch's ops lie between those of kernels" in caplog.text


def test_graphs_with_large_page_tables_make_way(
    tmp_path: Path, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "MAX_ENTRIES", 3 * 512 // 4)
    one = rig(write_tiny_model(tmp_path))
    for names in ("a", "ab", "abc", "a"):
        answers(one, names)
        one.cache.flush()
    assert [rows for repeated, rows in steps if not repeated] == [1, 2, 3, 1]


def test_a_step_with_an_op_of_others_is_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_tiny_model(tmp_path)
    with caplog.at_level(logging.INFO):
        one = rig(folder, offered=(reference.silu_and_mul, "vendor"))
        assert answers(one, "ab") == answers(rig(folder), "ab")
    assert "kernel by kernel: op 'silu_and_mul' of 'vendor' may do more than its calls show" in caplog.text


def test_without_own_kernels_nothing_is_recorded() -> None:
    backend = CpuBackend(kernels="none")
    assert not backend.capabilities.graph_capture
    with pytest.raises(BackendError, match="captures no graphs; set runtime"):
        backend.capture_graph(lambda: torch.zeros(1))


def test_an_id_outside_of_the_vocabulary_reads_nothing(tmp_path: Path) -> None:
    one = rig(write_tiny_model(tmp_path))
    backend, model = one.runner.backend, one.runner.model
    ids_T = torch.tensor([3])
    work = backend.execute_runnable(lambda: backend.capture_graph(lambda: model.embedding(ids_T)))
    known = work.result.clone()
    ids_T.fill_(2**40)
    assert backend.execute_runnable(work.replay).isnan().all()
    ids_T.fill_(3)
    assert torch.equal(backend.execute_runnable(work.replay), known)
    ids_T.fill_(2**40)
    with pytest.raises(IndexError, match="outside of the vocabulary of 320"):
        backend.execute_runnable(lambda: model.embedding(ids_T))


def test_weights_are_laid_out_anew_outside_of_what_is_repeated(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)

    def torch_calls(switched_off_after: int) -> set[int]:
        one = rig(folder)
        one.add("a", PROMPTS["a"])
        for step in range(6):
            if step == switched_off_after:
                one.runner.backend.ops.quarantine(reference.linear, "cpu_kernels", "tried")
            one.step()
        graphs = one.runner._graphs
        return {recorded._graph._program.num_torch_calls for recorded in graphs._recorded.values()}

    assert torch_calls(3) == torch_calls(0) != set()
