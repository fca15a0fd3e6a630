"""However the work is cut into steps, greedy tokens are those of transformers."""

from functools import cache

import numpy as np
import pytest

from sglk.testing.tiny import tiny_config
from tests.models.greedy import ARCHITECTURES, Stepper, growing_oracle, oracle, tiny_runner

COUNT = 12
LENGTHS = (70, 33, 1, 16)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, length).tolist() for length in LENGTHS]


@cache
def expected(name: str) -> list[list[int]]:
    return oracle(ARCHITECTURES[name], prompts(), COUNT)


@pytest.mark.parametrize(("chunk", "page_size"), [(1, 16), (7, 1), (16, 16), (1000, 1)])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_change_no_token(name: str, chunk: int, page_size: int) -> None:
    stepper = Stepper(tiny_runner(ARCHITECTURES[name]), page_size, 160 // page_size)
    request = stepper.add(prompts()[0])
    stepper.prefill(request, chunk)
    while len(stepper.answer(request)) < COUNT:
        stepper.step(decodes=[request])
    assert stepper.answer(request) == expected(name)[0]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_neighbours_in_a_batch_change_no_token(name: str, page_size: int) -> None:
    stepper = Stepper(tiny_runner(ARCHITECTURES[name]), page_size, 256 // page_size)
    requests = [stepper.add(prompt) for prompt in prompts()]
    stepper.step(prefills=[(request, 1000) for request in requests])
    for _ in range(COUNT - 1):
        stepper.step(decodes=requests)
    assert [stepper.answer(request) for request in requests] == expected(name)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2-moe-mixed"])
def test_prefills_and_decodes_share_steps(name: str, page_size: int) -> None:
    stepper = Stepper(tiny_runner(ARCHITECTURES[name]), page_size, 256 // page_size)
    requests = [stepper.add(prompt) for prompt in prompts()]
    stepper.prefill(requests[3], 1000)
    running = [requests[3]]
    waiting = requests[:3]
    while any(len(stepper.answer(request)) < COUNT for request in requests):
        chunks = [(request, 9) for request in waiting[:2]]
        decodes = [request for request in running if len(stepper.answer(request)) < COUNT]
        stepper.step(prefills=chunks, decodes=decodes)
        running += [request for request in waiting if stepper.answer(request)]
        waiting = [request for request in waiting if not stepper.answer(request)]
    assert [stepper.answer(request) for request in requests] == expected(name)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_dynamic_scaling_gives_the_tokens_of_a_text_that_grows(chunk: int) -> None:
    config = tiny_config(max_position_embeddings=32, rope_scaling={"type": "dynamic", "factor": 8.0})
    stepper = Stepper(tiny_runner(config), 16, 10)
    request = stepper.add(prompts()[0])
    stepper.prefill(request, chunk)
    while len(stepper.answer(request)) < COUNT:
        stepper.step(decodes=[request])
    assert stepper.answer(request) == growing_oracle(config, prompts()[0], COUNT)


def test_a_shared_prefix_is_read_from_the_pages_of_another_request() -> None:
    stepper = Stepper(tiny_runner(ARCHITECTURES["llama"]), 16, 16)
    first = stepper.add(prompts()[0])
    stepper.prefill(first, 1000)
    second = stepper.add(prompts()[0])
    stepper.pages[second] = stepper.pages[first][:4]
    stepper.done[second] = 64
    stepper.prefill(second, 1000)
    while len(stepper.answer(second)) < COUNT:
        stepper.step(decodes=[second])
    assert stepper.answer(second) == expected("llama")[0]


def test_stale_nan_in_the_pool_reaches_nobody() -> None:
    runner = tiny_runner(ARCHITECTURES["llama"])
    stepper = Stepper(runner, 16, 16)
    assert runner.pool is not None
    for tensor in (*runner.pool.keys, *runner.pool.values):
        tensor.fill_(float("nan"))
    requests = [stepper.add(prompt) for prompt in prompts()]
    stepper.step(prefills=[(request, 1000) for request in requests])
    for _ in range(COUNT - 1):
        stepper.step(decodes=requests)
    assert [stepper.answer(request) for request in requests] == expected("llama")
