"""Greedy continuation by transformers and by a runner cut into steps in different ways."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.models.registry import model_class
from sglk.models.spec import ModelSpec
from sglk.testing.tiny import Weights, tiny_config, tiny_weights

CLASSES = {
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
}

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
    names = set(ModelSpec.__dataclass_fields__) & set(config)
    heads = config["num_attention_heads"]
    return ModelSpec(
        architecture=config["architectures"][0],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        eos_token_ids=frozenset({config["eos_token_id"]}),
        **{name: config[name] for name in names - {"architecture", "head_dim", "eos_token_ids"}},
    )


def tiny_runner(config: dict[str, Any], arrays: Weights | None = None, **runtime: Any) -> ModelRunner:
    """Return a runner of the tiny model without a KV pool."""
    backend = CpuBackend(num_threads=1)
    spec = spec_of(config)
    model = model_class(spec.architecture)(spec, backend, torch.float32)
    model.load_weights(ArrayWeights(arrays or tiny_weights(config)))
    return ModelRunner(model, backend, RuntimeConfig(**runtime))


def oracle(config: dict[str, Any], prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Continue each prompt alone with transformers' eager attention, without a cache."""
    config_class, lm_class = CLASSES[config["architectures"][0]]
    model = lm_class(config_class(**config, attn_implementation="eager"))
    state = {name: torch.from_numpy(array) for name, array in tiny_weights(config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config["tie_word_embeddings"] else set())
    model.tie_weights()
    model.eval()
    answers = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(count):
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
        answers.append(ids[len(prompt) :])
    return answers


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
        for row, token in zip([row for row in rows if row.samples], tokens, strict=True):
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
    "llama-tied": tiny_config(tie_word_embeddings=True),
    "llama-one-kv-head": tiny_config(num_key_value_heads=1),
    "llama-wide-heads": tiny_config(head_dim=32, num_key_value_heads=4),
    "qwen2": tiny_config("Qwen2ForCausalLM"),
    "qwen2-tied": tiny_config("Qwen2ForCausalLM", tie_word_embeddings=True, rope_theta=1e6),
}
