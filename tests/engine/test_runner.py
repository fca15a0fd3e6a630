from dataclasses import replace

import pytest
import torch

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, BatchRow, RowResult, Runner
from sglk.engine.messages import SamplingParams
from sglk.errors import CapacityError, ConfigError
from sglk.testing.tiny import tiny_config, tiny_weights
from tests.models.greedy import Stepper, tiny_runner

CONFIG = tiny_config()
PROMPT = list(range(1, 41))


def test_it_states_the_facts_that_the_engine_needs() -> None:
    runner: Runner = tiny_runner(CONFIG)
    assert (runner.vocab_size, runner.context_length, runner.eos_token_ids) == (320, 256, frozenset({257}))
    assert runner.weights_bytes == sum(array.nbytes for array in tiny_weights(CONFIG).values())
    assert runner.peak_memory_bytes() > runner.weights_bytes
    assert {"name", "sdk", "threads"} <= runner.device_info.keys()


def test_a_chunk_that_samples_nothing_returns_nothing() -> None:
    runner = tiny_runner(CONFIG)
    runner.allocate_kv(4, 16)
    row = BatchRow("a", PROMPT[:20], 0, [0, 1], SamplingParams(), 0, 0, samples=False)
    assert runner.run(Batch([row], 1)) == [None]


def test_tokens_come_in_row_order_and_none_for_a_row_that_does_not_sample() -> None:
    runner = tiny_runner(CONFIG)
    greedy = SamplingParams(temperature=0.0)

    def run(*prompts: list[int]) -> list[RowResult | None]:
        runner.allocate_kv(16, 16)
        rows = [
            BatchRow(str(index), ids, 0, range(4 * index, 4 * index + 4), greedy, 0, 0, samples=len(ids) > 5)
            for index, ids in enumerate(prompts)
        ]
        return runner.run(Batch(rows, len(rows)))

    first, second = PROMPT[:17], PROMPT[5:31]
    assert run(first, [3, 4], second) == [*run(first), None, *run(second)]


def test_the_pool_is_rebuilt_without_touching_the_weights() -> None:
    runner = tiny_runner(CONFIG)
    weights = [weight.tensor.clone() for weight in runner.model.context.weights]
    answers = []
    for num_pages, page_size in ((8, 16), (100, 1), (20, 4)):
        stepper = Stepper(runner, page_size, num_pages)
        request = stepper.add(PROMPT)
        stepper.prefill(request, 16)
        for _ in range(4):
            stepper.step(decodes=[request])
        answers.append(stepper.answer(request))
        assert runner.pool is not None
        assert runner.pool.num_bytes == sum(t.nbytes for t in (*runner.pool.keys, *runner.pool.values))
    assert answers[0] == answers[1] == answers[2]
    assert all(map(torch.equal, (weight.tensor for weight in runner.model.context.weights), weights))


def test_the_old_pool_is_freed_before_the_new_one_is_made() -> None:
    runner = tiny_runner(CONFIG)
    runner.allocate_kv(8, 16)
    assert runner.pool is not None
    old = runner.pool.keys[0]
    runner.allocate_kv(4, 16)
    assert old.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_kv_dtype_is_its_own_choice(dtype: str) -> None:
    stepper = Stepper(tiny_runner(CONFIG, kv_cache_dtype=dtype), 16, 8)
    request = stepper.add(PROMPT)
    stepper.prefill(request, 7)
    stepper.step(decodes=[request])
    pool = stepper.runner.pool
    assert pool is not None
    assert pool.keys[0].dtype is {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert pool.layout.bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_a_kv_dtype_that_the_device_lacks_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.kv_cache_dtype=fp8 is not supported"):
        tiny_runner(CONFIG, kv_cache_dtype="fp8")


def test_capacity_follows_the_runtime_it_is_asked_for() -> None:
    runner = tiny_runner(CONFIG)
    weights, token = runner.weights_bytes, 2 * 2 * 2 * 16 * 4
    # 4 MiB * 0.5, and no more than two requests of 256 tokens.
    assert runner.kv_capacity_tokens(RuntimeConfig(device_memory_gib=4 / 1024, max_running_requests=2)) == 512
    room = RuntimeConfig(device_memory_gib=4 / 1024, mem_fraction_static=0.5, max_running_requests=64)
    assert runner.kv_capacity_tokens(room) == (2 * 2**20 - weights) // token
    with pytest.raises(CapacityError, match=f"the weights take {weights}.*raise it to"):
        runner.kv_capacity_tokens(RuntimeConfig(device_memory_gib=4 / 1024, mem_fraction_static=0.05))


def test_a_page_size_that_the_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = tiny_runner(CONFIG)
    monkeypatch.setattr(runner.backend, "capabilities", replace(runner.backend.capabilities, page_sizes=(128,)))
    with pytest.raises(ConfigError, match=r"page_size=16 is not supported.*128"):
        runner.allocate_kv(4, 16)
