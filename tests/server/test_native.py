import itertools

import pytest

from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import Served, error_of, scripted_answers, serving

PATH = "/generate"
GREEDY = {"sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}


def test_an_answer_has_sglang_s_form(served: Served) -> None:
    body = served.post(PATH, {"text": "Hello", "rid": "mine", **GREEDY}).json()

    assert set(body) == {"text", "output_ids", "meta_info"}
    assert len(body["output_ids"]) == 8
    meta = body["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (5, 8, 0)
    assert meta["e2e_latency"] > 0


def test_text_and_input_ids_mean_the_same(served: Served) -> None:
    text, ids = [
        served.post(PATH, {**prompt, **GREEDY}).json() for prompt in ({"text": "hey"}, {"input_ids": [*b"hey"]})
    ]

    assert text["output_ids"] == ids["output_ids"]


def test_a_stream_is_cumulative(served: Served) -> None:
    plain = served.post(PATH, {"text": "again", **GREEDY}).json()
    events = served.events(PATH, {"text": "again", **GREEDY})

    assert events[-1]["text"] == plain["text"]
    assert events[-1]["output_ids"] == plain["output_ids"]
    for earlier, later in itertools.pairwise(events):
        assert later["text"].startswith(earlier["text"])
        assert later["meta_info"]["completion_tokens"] > earlier["meta_info"]["completion_tokens"]
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)


def test_a_batch_gives_a_list_in_order(served: Served) -> None:
    alone = [served.post(PATH, {"text": text, **GREEDY}).json()["text"] for text in ("one", "two")]
    batch = served.post(PATH, {"text": ["one", "two"], "rid": ["a", "b"], **GREEDY}).json()

    assert [result["text"] for result in batch] == alone
    assert [result["meta_info"]["id"] for result in batch] == ["a", "b"]
    assert len(served.post(PATH, {"text": ["one"], **GREEDY}).json()) == 1


def test_a_batch_may_have_sampling_parameters_each(served: Served) -> None:
    sampling = [{"max_new_tokens": count, "ignore_eos": True} for count in (2, 5)]
    batch = served.post(PATH, {"input_ids": [[1], [2]], "sampling_params": sampling}).json()

    assert [result["meta_info"]["completion_tokens"] for result in batch] == [2, 5]


def test_a_streamed_batch_numbers_its_events(served: Served) -> None:
    events = served.events(PATH, {"text": ["one", "two"], **GREEDY})
    last = {event["index"]: event for event in events}

    assert sorted(last) == [0, 1]
    assert all(event["meta_info"]["finish_reason"]["type"] == "length" for event in last.values())


def test_n_samples_come_as_a_list(served: Served) -> None:
    sampling = {"n": 3, "seed": 5, "temperature": 1, "max_new_tokens": 8, "ignore_eos": True}
    results = served.post(PATH, {"text": "x", "rid": "mine", "sampling_params": sampling}).json()

    assert len({result["text"] for result in results}) == 3
    assert [result["meta_info"]["id"] for result in results] == ["mine-0", "mine-1", "mine-2"]


def test_what_stopped_the_answer_is_named() -> None:
    with serving(ScriptedRunner(script=scripted_answers("ABCDEF"))) as served:
        by_string = served.post(PATH, {"text": "x", "sampling_params": {"stop": "CD"}}).json()
        by_token = served.post(PATH, {"text": "x", "sampling_params": {"stop_token_ids": [ord("C")]}}).json()
        by_end = served.post(PATH, {"text": "x"}).json()

    assert by_string["text"] == "AB"
    assert by_string["meta_info"]["finish_reason"] == {"type": "stop", "matched": "CD"}
    assert by_token["meta_info"]["finish_reason"] == {"type": "stop", "matched": ord("C")}
    assert by_end["meta_info"]["finish_reason"] == {"type": "stop", "matched": 257}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text"),
        ({"text": 5}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids"),
        ({"input_ids": [320]}, "input_ids"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"input_ids": [65] * 256}, "input_ids"),
        ({"text": "x", "sampling_params": 5}, "sampling_params"),
        ({"text": "x", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"text": "x", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params.n"),
        ({"text": ["a", "b"], "rid": ["one"]}, "rid"),
        ({"text": "x", "sampling_params": {"stop_regex": "a+"}}, "sampling_params.stop_regex"),
        ({"text": "x", "sampling_params": {"min_tokens": 1}}, "sampling_params.min_tokens"),
        ({"text": "x", "sampling_params": {"top_k": 0}}, "sampling_params.top_k"),
        ({"text": "x", "sampling_params": {"logit_bias": {"99999": 1}}}, "sampling_params.logit_bias"),
        ({"text": "x", "sampling_params": {"frequency_penalty": 3}}, "sampling_params.frequency_penalty"),
    ],
)
def test_wrong_bodies_are_refused_by_name(served: Served, body: object, param: str) -> None:
    assert error_of(served.post(PATH, body))["param"] == param


def test_what_sglang_s_benchmark_sends_is_accepted(served: Served) -> None:
    body = {
        "text": "hello",
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True},
        "stream": True,
        "lora_path": "",
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
    }

    assert served.events(PATH, body)[-1]["meta_info"]["completion_tokens"] == 4


def test_an_absurd_number_of_samples_is_refused_at_once(served: Served) -> None:
    for n in (10**29, 10**5, 65):
        error = error_of(served.post(PATH, {"text": "x", "sampling_params": {"n": n}}))

        assert error["param"] in ("n", "sampling_params.n")
    error_of(served.post("/v1/completions", {"prompt": "x", "n": 10**29}))
