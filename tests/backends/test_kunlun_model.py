"""A model on the kunlun backend, against the same without any of its ops."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sglk.config.compose import compose
from sglk.engine.loading import load_runner
from sglk.testing.tiny import write_tiny_model
from tests.backends.kunlun_on_cpu import KunlunOnCpu
from tests.models.greedy import together

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("architecture", "more", "quantization", "used"),
    [
        ("LlamaForCausalLM", {}, "null", {"prefill_attention", "speculative_attention", "reshape_and_cache", "swiglu"}),
        ("Qwen3MoeForCausalLM", {"num_experts": 8}, "null", {"moe_softmax_topk_norm", "moe_pre_sorted", "moe_post"}),
        ("LlamaForCausalLM", {}, "w8a8", {"quant2d", "matmul"}),
    ],
)
@pytest.mark.usefixtures("sdk")
def test_a_model_answers_as_it_does_by_the_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    more: dict[str, Any],
    quantization: str,
    used: set[str],
) -> None:
    class ByReference(KunlunOnCpu):
        """The same device, without any of its ops."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.ops = type(self.ops)("allow")

    offers = {"kunlun_on_cpu": KunlunOnCpu, "by_reference": ByReference}
    monkeypatch.setattr("sglk.plugins.claims._registered", offers)
    folder = write_tiny_model(tmp_path / "model", architecture=architecture, **SHAPE | more)
    answers = greedy(folder, "kunlun_on_cpu", quantization)
    called = set(sys.modules["kunlun_ops"].calls)
    assert used | {"rmsnorm"} <= called
    sys.modules["kunlun_ops"].calls.clear()
    assert answers == greedy(folder, "by_reference", quantization)
    assert sys.modules["kunlun_ops"].calls == []


def greedy(folder: Path, backend: str, quantization: str) -> list[list[int]]:
    words = [f"model={folder}", f"backend.name={backend}", "chip=kunlun_p800", "profiles=none", "runtime.page_size=128"]
    runner, _ = load_runner(compose("serve", [*words, f"runtime.quantization={quantization}"]).config)
    return together(runner, [range(3, 250), range(100, 141)], 10, chunk=128, page_size=128, num_pages=8)
