"""Output tokens per second on smollm2: the engine against `transformers` generate, same weights, prompts and lengths.

Both run in this process, in fp32, with the same number of threads, in turns. The engine gets all requests at once;
`transformers` gets them one after another (what a script does) and as one batch without padding (its best case).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.result import Row, main
from sglk.bench.prompts import Draw, words
from sglk.config.compose import compose
from sglk.engine.messages import SamplingParams
from sglk.llm import LLM
from sglk.models.description import describe_model
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_weights import GgufWeights

MODEL = "smollm2"
BAR = 3.0

Tokens = list[list[int]]
Generate = Callable[[Tokens], Tokens]


@dataclass(frozen=True)
class Size:
    """How much is generated."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    rounds: int


FULL = Size(requests=16, prompt_tokens=96, output_tokens=64, rounds=3)
QUICK = Size(requests=16, prompt_tokens=32, output_tokens=16, rounds=1)


def load_transformers() -> Any:
    """Return the same model as the engine's: its weights come from sglk's own reader."""
    description = describe_model(compose("serve", [f"model={MODEL}"]).config.model)
    assert isinstance(description.weights, GgufFile)
    spec, weights = description.spec, GgufWeights(description.weights, description.spec)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_hidden_layers=spec.num_hidden_layers,
            num_attention_heads=spec.num_attention_heads,
            num_key_value_heads=spec.num_key_value_heads,
            head_dim=spec.head_dim,
            max_position_embeddings=spec.max_position_embeddings,
            rms_norm_eps=spec.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
            tie_word_embeddings=spec.tie_word_embeddings,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    missing, unexpected = model.load_state_dict({name: weights.get(name) for name in weights.names()}, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model.eval()


def measure(quick: bool) -> list[Row]:
    """Alternate between the ways, round after round, and compare the medians."""
    size = QUICK if quick else FULL
    rival = load_transformers()
    with LLM(MODEL, overrides=["profiles=none"], dtype="fp32", max_running_requests=size.requests) as llm:
        prompts = [_prompt(llm, index, size.prompt_tokens) for index in range(size.requests)]
        ways: dict[str, Generate] = {
            "engine": lambda prompts: _engine(llm, prompts, size.output_tokens),
            "engine, one by one": lambda prompts: _one_by_one(llm, prompts, size.output_tokens),
            "one by one": lambda prompts: [_transformers(rival, [prompt], size.output_tokens)[0] for prompt in prompts],
            "one batch": lambda prompts: _transformers(rival, prompts, size.output_tokens),
        }
        speeds, answers = _alternate(ways, prompts, size)
    return _rows(size, speeds, answers)


def _prompt(llm: LLM, index: int, length: int) -> list[int]:
    return list(llm.engine.tokenizer.encode(words(Draw("compare", index), length * 2)))[:length]


def _engine(llm: LLM, prompts: Tokens, length: int) -> Tokens:
    llm.engine.flush_cache()
    params = SamplingParams(temperature=0.0, max_new_tokens=length, ignore_eos=True)
    return [list(answer.token_ids) for answer in llm.generate(prompts, params)]


def _one_by_one(llm: LLM, prompts: Tokens, length: int) -> Tokens:
    return [_engine(llm, [prompt], length)[0] for prompt in prompts]


def _transformers(model: Any, prompts: Tokens, length: int) -> Tokens:
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
        )
    return [row[ids.shape[1] :] for row in found.tolist()]


def _alternate(
    ways: dict[str, Generate], prompts: Tokens, size: Size
) -> tuple[dict[str, list[float]], dict[str, Tokens]]:
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, Tokens] = {}
    for generate in ways.values():
        generate(prompts[:2])
    for _ in range(size.rounds):
        for name, generate in ways.items():
            start = time.perf_counter()
            answers[name] = generate(prompts)
            elapsed_s = time.perf_counter() - start
            produced = sum(map(len, answers[name]))
            assert produced == size.requests * size.output_tokens, (name, produced)
            speeds[name].append(produced / elapsed_s)
    return speeds, answers


def _rows(size: Size, speeds: dict[str, list[float]], answers: dict[str, Tokens]) -> list[Row]:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratio = statistics.median(a / b for a, b in zip(speeds["engine"], speeds["one by one"], strict=True))
    what = f"output tokens/s, {size.requests} requests of {size.prompt_tokens} + {size.output_tokens} tokens"
    return [
        Row(f"{what}, at once", medians["engine"], "tok/s", "transformers, one by one", medians["one by one"]),
        Row(f"{what}, at once", medians["engine"], "tok/s", "transformers, one batch", medians["one batch"]),
        Row(
            f"{what}, one by one",
            medians["engine, one by one"],
            "tok/s",
            "transformers, one by one",
            medians["one by one"],
        ),
        Row("engine to transformers one by one, median of rounds", ratio, "x", "bar, at least", BAR),
        Row(
            "requests with the same tokens as transformers one by one",
            _equal(answers["engine"], answers["one by one"]),
            "",
            "requests",
            size.requests,
        ),
    ]


def _equal(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> int:
    return sum(list(a) == list(b) for a, b in zip(some, others, strict=True))


if __name__ == "__main__":
    raise SystemExit(main("transformers_compare", measure, ("torch", "transformers")))
