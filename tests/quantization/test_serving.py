"""Quantised models and KV pools under a real engine: nobody's tokens depend on what runs beside or ran before."""

import random
from pathlib import Path
from typing import Any

import pytest

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.testing.tiny import write_tiny_model
from tests.engine.receiving import TOKENIZER, submit
from tests.quantization.answers import load

GREEDY = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)

SETTINGS = [
    {"quantization": "w8a8"},
    {"quantization": "w8a16"},
    {"quantization": "w4a16"},
    {"quantization": "fp8"},
    {"kv_cache_dtype": "int8"},
    {"kv_cache_dtype": "fp8_e4m3"},
    {"kv_cache_dtype": "fp8_e5m2"},
    {"quantization": "w8a8", "kv_cache_dtype": "int8", "dtype": "bf16"},
]


def prompts() -> list[list[int]]:
    """Prompts that share beginnings, twins among them."""
    rng = random.Random(5)
    stem = rng.choices(range(256), k=50)
    return [stem, stem, *(stem[:length] + rng.choices(range(256), k=rng.randrange(1, 20)) for length in (0, 16, 33))]


def answers(folder: Path, one_by_one: bool, **runtime: Any) -> tuple[list[list[int]], int]:
    """Return the tokens of every prompt, and how many prompt tokens came from the prefix cache."""
    settings = RuntimeConfig(**{"max_total_tokens": 1024, "num_threads": 1, **runtime})
    model = load(folder, **runtime)
    engine = Engine(ModelRunner(model, CpuBackend(num_threads=1), settings), TOKENIZER, settings)
    engine.start()
    try:
        receivers = []
        for index, prompt in enumerate(prompts()):
            receivers.append(submit(engine, str(index), prompt, GREEDY))
            if one_by_one:
                receivers[-1].wait()
        for receiver in receivers:
            receiver.wait()
        return [receiver.token_ids for receiver in receivers], engine.stats().cached_prompt_tokens
    finally:
        engine.shutdown()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: ",".join(setting.values()))
def test_tokens_are_the_same_alone_together_cached_and_in_chunks(tmp_path: Path, setting: dict[str, str]) -> None:
    folder = write_tiny_model(tmp_path)
    alone, cached = answers(folder, True, disable_radix_cache=True, **setting)
    assert cached == 0
    assert alone[0] == alone[1]
    together, _ = answers(folder, False, disable_radix_cache=True, **setting)
    assert together == alone
    reused, cached = answers(folder, True, **setting)
    assert cached > 0
    assert reused == alone
    chunked, _ = answers(folder, False, chunked_prefill_size=16, **setting)
    assert chunked == alone
