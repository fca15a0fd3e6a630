"""Greedy continuation by transformers and by a runner cut into steps in different ways."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.models.fields import Fields
from sglk.models.hf_config import spec_from_config
from sglk.models.registry import model_class
from sglk.models.spec import ModelSpec
from sglk.testing.tiny import tiny_config, write_json, write_shards
from sglk.testing.tiny_weights import Weights, tiny_weights

GREEDY = SamplingParams(temperature=0.0)


class ArrayWeights:
    """Weights held in memory."""

    def __init__(self, arrays: Weights) -> None:
        self.arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def __str__(self) -> str:
        return "arrays"

    def names(self) -> Iterable[str]:
        return self.arrays.keys()

    def get(self, name: str) -> torch.Tensor:
        return self.arrays[name]


def spec_of(config: dict[str, Any]) -> ModelSpec:
    """Return the spec of a tiny configuration."""
    return spec_from_config(Fields(config, "config.json"), Fields({}, "generation_config.json"))


def tiny_runner(
    config: dict[str, Any],
    arrays: Weights | None = None,
    backend: CpuBackend | None = None,
    dtype: torch.dtype = torch.float32,
    **runtime: Any,
) -> ModelRunner:
    """Return a runner of the tiny model without a KV pool."""
    backend = backend or CpuBackend(num_threads=1)
    spec = spec_of(config)
    model = model_class(spec.architecture)(spec, backend, dtype)
    model.load_weights(ArrayWeights(arrays or tiny_weights(config)))
    return ModelRunner(model, backend, RuntimeConfig(**runtime))


def oracle(config: dict[str, Any], prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Continue each prompt alone with transformers' eager attention, recomputing everything for each token."""
    model = transformers_model(config)
    answers = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(count):
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
        answers.append(ids[len(prompt) :])
    return answers


def growing_oracle(config: dict[str, Any], prompt: Sequence[int], count: int) -> list[int]:
    """Continue a prompt with transformers' cache, the prompt too computed token by token."""
    model, cache = transformers_model(config), transformers.DynamicCache()
    ids = list(prompt)
    for done in range(len(prompt) + count - 1):
        with torch.no_grad():
            # The cache is the fourth argument; its name changed between versions.
            logits = model(torch.tensor([[ids[done]]]), None, None, cache, use_cache=True).logits
        if done >= len(prompt) - 1:
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def transformers_model(config: dict[str, Any]) -> Any:
    """Return the tiny model as transformers loads it from its files."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "config.json", config)
        write_shards(Path(folder), tiny_weights(config), 1)
        model, loading = getattr(transformers, config["architectures"][0]).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    assert not any(loading.values()), loading
    return model.eval()


class Stepper:
    """Requests on one runner, advanced a chunk or a token at a time; their pages lie scattered in the pool."""

    def __init__(self, runner: ModelRunner, page_size: int, num_pages: int) -> None:
        runner.allocate_kv(num_pages, page_size)
        self.runner = runner
        self.page_size = page_size
        self.free = [*range(0, num_pages, 2), *range(1, num_pages, 2)]
        self.ids: list[list[int]] = []
        self.prompt_lens: list[int] = []
        self.done: list[int] = []
        self.pages: list[list[int]] = []

    def add(self, prompt: Sequence[int]) -> int:
        self.ids.append(list(prompt))
        self.prompt_lens.append(len(prompt))
        self.done.append(0)
        self.pages.append([])
        return len(self.ids) - 1

    def answer(self, request: int) -> list[int]:
        return self.ids[request][self.prompt_lens[request] :]

    def step(self, prefills: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = ()) -> None:
        """Compute a chunk of given length of each prefill, and one token of each decode."""
        rows = [self._row(request, length) for request, length in prefills]
        rows += [self._row(request, 1) for request in decodes]
        tokens = self.runner.run(Batch(rows, len(prefills)))
        for row, token in zip(rows, tokens, strict=True):
            if isinstance(token, int):
                self.ids[int(row.request_id)].append(token)

    def prefill(self, request: int, chunk: int) -> None:
        while self.done[request] < self.prompt_lens[request]:
            self.step(prefills=[(request, chunk)])

    def _row(self, request: int, length: int) -> BatchRow:
        start = self.done[request]
        ids = self.ids[request][start : start + length]
        end = self.done[request] = start + len(ids)
        while len(self.pages[request]) * self.page_size < end:
            self.pages[request].append(self.free.pop())
        samples = end == len(self.ids[request])
        generated = len(self.ids[request]) - self.prompt_lens[request]
        return BatchRow(str(request), ids, start, self.pages[request], GREEDY, 0, generated, samples)


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": tiny_config(),
    "llama-tied-yarn": tiny_config(
        tie_word_embeddings=True, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    ),
    "llama-one-kv-head": tiny_config(num_key_value_heads=1),
    "llama-wide-heads-linear": tiny_config(
        head_dim=32, num_key_value_heads=4, rope_scaling={"type": "linear", "factor": 2.0}
    ),
    "qwen2": tiny_config("Qwen2ForCausalLM"),
    "qwen2-tied": tiny_config("Qwen2ForCausalLM", tie_word_embeddings=True, rope_theta=1e6),
    "llama3-biases": tiny_config(
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "mistral": tiny_config("MistralForCausalLM", sliding_window=24),
    "qwen2-window": tiny_config(
        "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=9, max_window_layers=1, num_hidden_layers=3
    ),
    "qwen3": tiny_config("Qwen3ForCausalLM"),
    "qwen3-layer-types": tiny_config(
        "Qwen3ForCausalLM",
        use_sliding_window=True,
        sliding_window=17,
        layer_types=["sliding_attention", "full_attention"],
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "mixtral": tiny_config("MixtralForCausalLM", sliding_window=24),
    "qwen2-moe": tiny_config("Qwen2MoeForCausalLM"),
    "qwen2-moe-mixed": tiny_config(
        "Qwen2MoeForCausalLM",
        num_hidden_layers=4,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=2,
    ),
    "qwen3-moe": tiny_config("Qwen3MoeForCausalLM", num_experts_per_tok=3),
    "qwen3-moe-all-chosen": tiny_config("Qwen3MoeForCausalLM", num_experts_per_tok=6, norm_topk_prob=False),
}
"""One of each family, and what its configuration can turn on."""


def together(
    runner: Any, prompts: Sequence[Sequence[int]], count: int, *, chunk: int, page_size: int, num_pages: int
) -> list[list[int]]:
    """Return the answers to requests that prefill in chunks beside each other and decode `count` tokens together."""
    stepper = Stepper(runner, page_size=page_size, num_pages=num_pages)
    requests = [stepper.add(prompt) for prompt in prompts]
    for request in requests:
        stepper.prefill(request, chunk)
    for _ in range(count):
        stepper.step(decodes=requests)
    return [stepper.answer(request) for request in requests]
