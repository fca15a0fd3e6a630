"""The real engine on imagined chips."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglk import LLM, SamplingParams
from sglk.backends.sim import SimBackend
from sglk.config.catalogue import chips
from sglk.engine.messages import Grammar
from sglk.engine.remembered import RememberedSteps
from sglk.engine.runner import ModelRunner
from sglk.errors import BackendError, CapacityError, ConfigError
from sglk.testing.tiny import write_tiny_model

CHIPS = {entry.config.name: entry.config for entry in chips().entries}
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
AT_ONCE = ("backend=sim", "backend.options.speed=0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with imagine(str(folder), "kunlun", max_total_tokens=2048) as llm:
        yield llm


def imagine(model: str, chip: str, *overrides: str, **runtime: object) -> LLM:
    return LLM(model, chip=chip, overrides=(*AT_ONCE, *overrides), **runtime)


def device(llm: LLM) -> SimBackend:
    runner = llm.engine._runner
    assert isinstance(runner, ModelRunner)
    assert isinstance(runner.backend, SimBackend)
    return runner.backend


@pytest.mark.parametrize("chip", sorted(CHIPS))
def test_every_chip_serves(chip: str, folder: Path) -> None:
    with imagine(str(folder), chip, max_total_tokens=1024) as llm:
        (answer,) = llm.generate("hello", GREEDY)
        assert len(answer.token_ids) == 12
        assert llm.engine.device_info["name"] == f"{CHIPS[chip].title} (simulated)"
        assert llm.engine.dtype == CHIPS[chip].dtypes[0]
        assert device(llm).clock.busy_s > 0


def test_a_model_without_files_is_served_within_the_chip_s_memory() -> None:
    settings = {"quantization": "w8a8", "tp_size": 4, "max_running_requests": 8}
    with imagine("qwen72b", "kunlun", **settings) as llm:
        memory = device(llm).memory_info()
        stats = llm.engine.stats()
        # 72.7e9 weights, two embeddings of 1.2e9 in two bytes and in every part, the rest in one byte and divided.
        assert llm.engine.weights_bytes == pytest.approx(70.2e9 / 4 + 2 * 1.25e9 * 2, rel=0.02)
        assert stats.kv_capacity_tokens == pytest.approx((0.75 * 2**35 - llm.engine.weights_bytes) / 81920, abs=128)
        assert memory.total == 2**35
        assert memory.free == pytest.approx(0.25 * 2**35, abs=2**25)
        before_s, steps = device(llm).clock.busy_s, stats.steps
        llm.generate(["a", "b"], GREEDY)
        step_s = (device(llm).clock.busy_s - before_s) / (llm.engine.stats().steps - steps)
        # Of the embedding two rows are read, of everything else all.
        read_s = (llm.engine.weights_bytes - 152064 * 8192 * 2) / (512e9 * 0.8)
        sums_s = 160 * 6 * 8e-6
        assert read_s + sums_s < step_s < 1.5 * (read_s + sums_s)


def test_more_ranks_hold_less_each_and_are_quicker(folder: Path) -> None:
    held, busy = [], []
    for ranks in (1, 2):
        with imagine(str(folder), "kunlun", "backend.options.launch_us=0", tp_size=ranks, max_total_tokens=512) as llm:
            held.append(llm.engine.weights_bytes)
            llm.generate("hello", GREEDY)
            busy.append(device(llm).clock.busy_s)
    assert held[1] < held[0]
    # A tiny model gains nothing, it pays for the sums: 4 a step, each of 2 hops of 8 us.
    assert busy[1] > busy[0]


def test_weights_too_large_for_the_chip_are_refused_with_a_way_out() -> None:
    with pytest.raises(
        CapacityError,
        match=r"61\.0 GiB in fp16, .* runtime.quantization=w8a8 with runtime.tp_size=2, runtime.tp_size=4",
    ):
        imagine("qwen32b", "kunlun", tp_size=1)
    with pytest.raises(CapacityError, match=r"no page of 128 KV tokens .* use a smaller model, runtime.tp_size=2, or"):
        imagine("qwen32b", "kunlun", quantization="w8a8", tp_size=1)


def test_a_model_too_large_for_one_chip_is_spread_over_as_few_as_hold_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), imagine("qwen32b", "kunlun", quantization="w8a8") as llm:
        assert llm.engine.runtime.tp_size == 2
        # As the plan of two devices has it.
        assert llm.engine.stats().kv_capacity_tokens == 53632
        assert len(llm.generate("hello", GREEDY)[0].token_ids) == 12
    assert (
        "qwen32b in w8a8 needs 34.3 GB a device, kunlun plans 25.8 GB: serving on 2 devices (runtime.tp_size=2)"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype=fp8_e4m3 is not allowed on chip 'kunlun'"),
        ({"quantization": "awq"}, "quantization=awq is not allowed on chip 'kunlun'"),
        ({"dtype": "fp32"}, "dtype=fp32 is not allowed on chip 'kunlun'"),
        ({"page_size": 64}, "page_size=64 is not allowed on chip 'kunlun'"),
    ],
)
def test_what_the_chip_lacks_is_refused(folder: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        imagine(str(folder), "kunlun", **settings)
    assert message in str(caught.value)


def test_experts_that_do_not_fit_the_kernel_fall_back_and_cost_more(tmp_path: Path) -> None:
    busy = {}
    for experts in (6, 8):
        folder = write_tiny_model(tmp_path / str(experts), architecture="Qwen3MoeForCausalLM", num_experts=experts)
        with imagine(str(folder), "kunlun", max_total_tokens=512) as llm:
            choices = {choice.op: choice for choice in device(llm).ops.choices()}
            assert choices["run_experts"].fallback == (experts == 6)
            llm.generate("hello", GREEDY)
            busy[experts] = device(llm).clock.busy_s
        if experts == 6:
            assert choices["run_experts"].reason == "sim: experts % 4 == 0"
            with pytest.raises(BackendError, match=r"op 'run_experts' .* experts % 4 == 0"):
                imagine(str(folder), "kunlun", "backend.fallback=forbid")
    assert busy[6] > 1.2 * busy[8]


def test_answers_depend_on_the_request_alone(llm: LLM) -> None:
    prompts = ["hello", "world", "a longer prompt " * 12]
    alone = [llm.generate(prompt, GREEDY)[0].token_ids for prompt in prompts]
    llm.engine.flush_cache()
    together = [answer.token_ids for answer in llm.generate(prompts, GREEDY)]
    assert together == alone
    assert len(set(alone)) == 3


def test_chance_follows_the_seed(llm: LLM) -> None:
    answers = [
        llm.generate("hello", SamplingParams(max_new_tokens=12, ignore_eos=True, seed=seed))[0].token_ids
        for seed in (1, 2, 1)
    ]
    assert answers[0] == answers[2] != answers[1]


def test_answers_are_text_and_end_by_themselves(folder: Path) -> None:
    with imagine(str(folder), "h100", "backend.options.answer_tokens=20") as llm:
        free, long, least = llm.generate(
            "hello",
            SamplingParams(temperature=0.0),
        ) + llm.generate(
            ["hello", "hello"],
            [
                SamplingParams(temperature=0.0, max_new_tokens=40, ignore_eos=True),
                SamplingParams(temperature=0.0, min_new_tokens=30),
            ],
        )
    assert [len(answer.token_ids) for answer in (free, long, least)] == [20, 40, 31]
    assert [answer.finish and answer.finish.reason for answer in (free, long, least)] == ["stop", "length", "stop"]
    assert set(long.text) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_answers_follow_their_grammar(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    rules = SamplingParams(grammar=Grammar("json_schema", json.dumps(schema)), max_new_tokens=200, seed=1)
    answers = llm.generate(["one", "two", "three"], rules)
    for answer in answers:
        assert answer.finish is not None
        assert answer.finish.reason == "stop", answer.text
        assert json.loads(answer.text).keys() == {"name", "age"}


def test_logprobs_have_their_form(llm: LLM) -> None:
    wanted = SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs_start=1)
    (answer,) = llm.generate("hello", wanted)
    assert [known.token_id for known in answer.logprobs] == list(answer.token_ids)
    assert all(len(known.top) == 2 and known.logprob < 0 for known in answer.logprobs)
    assert [known and known.token_id for known in answer.prompt_logprobs] == [None, *b"llo"]


def test_answers_take_the_chip_s_time(folder: Path) -> None:
    with LLM(
        str(folder), chip="kunlun", overrides=["backend=sim", "backend.options.launch_us=500"], max_total_tokens=512
    ) as llm:
        llm.generate("hello", GREEDY)
        busy_s, started = device(llm).clock.busy_s, time.monotonic()
        llm.generate("other", GREEDY)
        took_s = time.monotonic() - started
        assert took_s >= 0.9 * (device(llm).clock.busy_s - busy_s) > 0.1


def test_remembered_steps_take_the_time_of_the_model(folder: Path) -> None:
    prompts = [[index + 1] * (40 + index) for index in range(6)]
    busy = []
    for remembers in (True, False):
        with imagine(str(folder), "kunlun", max_total_tokens=2048, disable_radix_cache=True) as llm:
            runner = llm.engine._runner
            assert isinstance(runner, ModelRunner)
            assert isinstance(runner.model, RememberedSteps)
            if not remembers:
                runner.model = runner.model._model
            llm.generate(prompts, GREEDY)
            busy.append(device(llm).clock.busy_s)
    assert busy[0] == pytest.approx(busy[1], rel=1e-9)


def test_an_option_that_does_not_exist_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no option 'sped'; did you mean 'speed'"):
        imagine(str(folder), "kunlun", "+backend.options.sped=1")
