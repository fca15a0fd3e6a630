"""Contract of the whole: tiny models, served by the engine, answer as they do by the reference."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sglk.attention.base import AttentionStep
from sglk.attention.paged import PagedAttention
from sglk.backends.base import DeviceBackend
from sglk.backends.cpu import CpuBackend
from sglk.backends.dtypes import torch_dtype
from sglk.backends.ops import OpRegistry
from sglk.cache.kv import KVLayout, KVPool
from sglk.config.schema import BackendConfig, ChipConfig, GroupConfig, ModelConfig, RuntimeConfig, ServeConfig
from sglk.engine.engine import Engine
from sglk.engine.loading import load_on
from sglk.engine.messages import Finish, GenerateRequest, Output, SamplingParams
from sglk.models.loader import load_model
from sglk.parallel.ranks import ALONE
from sglk.testing.contract.device_tests import DeviceTests
from sglk.testing.tiny import write_tiny_model

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM")
"""Plain, with a sliding window, with experts, with norms of heads."""

PROMPTS = ([*range(40, 120)], [*range(40, 90), 7, 8, 9], [3])
"""Two that share a beginning, and a short one."""

NEW_TOKENS = 8

DOUBTS = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.15, "int8": 0.1, "fp8_e4m3": 0.3, "fp8_e5m2": 0.6}
"""How far below the likeliest token's logit a chosen one's may be, in units of the logits' deviation, where the model
computes in the dtype or keeps keys and values in it."""

SCHEME_DOUBTS = {"w8a8": 0.15, "fp8": 0.5}
"""What comes on top for quantised weights whose activations may be rounded in another way."""


class ServingTests(DeviceTests):
    """A model on the backend, from its files to its answers."""

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_a_model_answers_as_it_does_by_the_reference(
        self, backend: DeviceBackend, tmp_path: Path, architecture: str
    ) -> None:
        folder = write_tiny_model(tmp_path, architecture=architecture, sliding_window=24)
        for dtype in sorted(backend.capabilities.dtypes):
            check(backend, folder, dtype=dtype)

    def test_every_kv_dtype_serves(self, backend: DeviceBackend, tmp_path: Path) -> None:
        folder = write_tiny_model(tmp_path)
        for name in sorted(backend.capabilities.kv_cache_dtypes):
            check(backend, folder, kv_cache_dtype=name)

    def test_every_page_size_serves(self, backend: DeviceBackend, tmp_path: Path) -> None:
        folder = write_tiny_model(tmp_path)
        for size in backend.capabilities.page_sizes or (1, 16, 128):
            check(backend, folder, page_size=size)

    @pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
    def test_every_quantisation_serves(self, backend: DeviceBackend, tmp_path: Path, architecture: str) -> None:
        folder = write_tiny_model(tmp_path, architecture=architecture)
        for scheme in sorted(backend.capabilities.quantization):
            check(backend, folder, quantization=scheme)


def check(backend: DeviceBackend, folder: Path, **settings: Any) -> None:
    """Demand of every token that the backend chooses that it is one that the reference may choose in its place."""
    page_size = next(iter(backend.capabilities.page_sizes), 16)
    runtime = RuntimeConfig(**{"page_size": page_size, "chunked_prefill_size": 2 * page_size, **settings})
    runtime.max_total_tokens = 8 * max(128, runtime.page_size)
    answers = served(backend, folder, runtime)
    assert [len(answer) for answer in answers] == [NEW_TOKENS] * len(PROMPTS), settings
    if backend.simulated:
        return
    doubt = DOUBTS[settings.get("dtype", backend.capabilities.default_dtype)]
    doubt += DOUBTS.get(runtime.kv_cache_dtype, 0.0) + SCHEME_DOUBTS.get(runtime.quantization or "", 0.0)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        doubts = gaps(folder, runtime, prompt, answer)
        assert max(doubts) <= doubt, f"{settings}: answer {answer} of prompt {prompt} has doubts {doubts}"


def served(backend: DeviceBackend, folder: Path, runtime: RuntimeConfig) -> list[list[int]]:
    """Return the answers of an engine to all prompts at once, and then again from its prefix cache."""
    config = ServeConfig(
        chip=ChipConfig(name="any", title="any chip", vendor="any", backend=backend.name),
        model=ModelConfig(name="tiny", path=str(folder)),
        backend=BackendConfig(name=backend.name),
        runtime=runtime,
        groups=[GroupConfig("contract", [f"{backend.name}:0"])],
    )
    runner, tokenizer = load_on(config, ALONE, backend)
    engine = Engine(runner, tokenizer, runtime)
    engine.start()
    try:
        first = answered(engine, "first")
        again = answered(engine, "again")
    finally:
        engine.shutdown()
        if runner.pool is not None:
            runner.pool.free()
    assert len(again) == len(first)
    return first


def answered(engine: Engine, name: str) -> list[list[int]]:
    """Submit all prompts and wait for their answers."""
    answers: list[list[int]] = [[] for _ in PROMPTS]
    ends: list[Future[Finish]] = [Future() for _ in PROMPTS]

    def receiver(index: int) -> Any:
        def receive(output: Output) -> None:
            answers[index] += output.token_ids
            if output.finish is not None:
                ends[index].set_result(output.finish)

        return receive

    sampling = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(GenerateRequest(f"{name} {index}", tuple(prompt), sampling), receiver(index))
    for end in ends:
        finish = end.result(timeout=120)
        assert finish.reason == "length", finish
    return answers


def gaps(folder: Path, runtime: RuntimeConfig, prompt: list[int], answer: list[int]) -> list[float]:
    """Return how far each token of an answer is below the reference's choice, in units of the logits' deviation."""
    reference = CpuBackend()
    reference.ops = OpRegistry("allow")
    exact = RuntimeConfig(dtype="fp32", quantization=runtime.quantization)
    model = load_model(ModelConfig(name="tiny", path=str(folder)), exact, reference).model
    ids = [*prompt, *answer[:-1]]
    spec, count = model.spec, len(ids)
    pool = KVPool(
        reference,
        KVLayout(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, torch_dtype("fp32")),
        count,
        1,
    )
    attention = PagedAttention(reference, pool, spec.num_attention_heads, model.dtype, spec.sliding_windows)

    def run() -> torch.Tensor:
        lens = np.array([count])
        attention.plan(AttentionStep(lens, lens, [range(count)], num_prefills=1))
        x_TE = model.trunk(torch.tensor(ids), torch.arange(count), attention)
        return model.head(x_TE[len(prompt) - 1 :])

    logits_LV = reference.execute_runnable(run)
    chosen_L = logits_LV.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
    distances: list[float] = ((logits_LV.amax(-1) - chosen_L) / logits_LV.std(-1)).tolist()
    return distances
