import pytest

from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import MODEL, Served, error_of, scripted_answers, serving

PATH = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def test_an_answer_has_openai_s_form(served: Served) -> None:
    body = served.post(PATH, {"model": MODEL, "prompt": "hello", **GREEDY}).json()

    assert body["object"] == "text_completion"
    assert body["model"] == MODEL
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["total_tokens"] == 13


def test_all_forms_of_a_prompt_mean_the_same(served: Served) -> None:
    ids = list(b"hello")
    texts = [
        served.post(PATH, {"prompt": prompt, **GREEDY}).json()["choices"][0]["text"]
        for prompt in ("hello", ["hello"], ids, [ids])
    ]

    assert len(set(texts)) == 1


def test_stream_and_plain_call_agree(served: Served) -> None:
    body = {"prompt": ["one", "two"], **GREEDY, "stream_options": {"include_usage": True}}
    plain = served.post(PATH, body).json()
    chunks = served.events(PATH, body)

    for choice in plain["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_no_usage_chunk_unless_asked_for(served: Served) -> None:
    chunks = served.events(PATH, {"prompt": "hello", **GREEDY})

    assert all(chunk["choices"] for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


def test_cached_tokens_are_reported_and_never_the_whole_prompt(served: Served) -> None:
    body = {"prompt": list(range(100, 148)), **GREEDY}
    first, *others = [served.post(PATH, body).json() for _ in range(3)]

    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for other in others:
        assert other["choices"] == first["choices"]
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 47


class TestSeveralChoices:
    body = {
        "prompt": ["a", "b"],
        "n": 3,
        "temperature": 1,
        "seed": 7,
        "max_tokens": 12,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }

    def test_indices_are_prompts_times_n(self, served: Served) -> None:
        chunks = served.events(PATH, self.body)
        finished = [part["index"] for chunk in chunks for part in chunk["choices"] if part["finish_reason"]]

        assert sorted(finished) == [0, 1, 2, 3, 4, 5]
        assert [chunk["choices"] for chunk in chunks].count([]) == 1
        assert chunks[-1]["usage"]["prompt_tokens"] == 2
        assert chunks[-1]["usage"]["completion_tokens"] == 72

    def test_samples_differ_and_the_same_seed_repeats_them(self, served: Served) -> None:
        first, second = [
            [choice["text"] for choice in served.post(PATH, self.body).json()["choices"]] for _ in range(2)
        ]

        assert first == second
        assert len(set(first)) == 6

    def test_another_seed_gives_other_samples(self, served: Served) -> None:
        first, second = [
            [choice["text"] for choice in served.post(PATH, {**self.body, "seed": seed}).json()["choices"]]
            for seed in (1, 2)
        ]

        assert not set(first) & set(second)

    @pytest.mark.parametrize("n", [0, -1, 1_000_000, 65, "2", 1.5, True])
    def test_silly_n_is_refused(self, served: Served, n: object) -> None:
        error = error_of(served.post(PATH, {"prompt": "a", "n": n}))
        assert error["param"] == "n"
        assert "server.max_choices" in error["message"]

    def test_too_many_prompts_are_refused(self, served: Served) -> None:
        error = error_of(served.post(PATH, {"prompt": ["a"] * 65}))

        assert error["param"] == "prompt"
        assert "64" in error["message"]

    def test_one_choice_may_end_before_the_others(self) -> None:
        runner = ScriptedRunner(script=lambda prompt: list(b"xy") if prompt == tuple(b"a") else list(b"uvwxyz"))
        with serving(runner) as served:
            choices = served.post(PATH, {"prompt": ["a", "b"], "max_tokens": 50}).json()["choices"]

        assert [choice["text"] for choice in choices] == ["xy", "uvwxyz"]
        assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]


class TestContext:
    """The model takes 256 tokens; one rule for both OpenAI routes and the native one."""

    @pytest.mark.parametrize("length", [256, 300])
    def test_a_prompt_that_fills_it_is_refused_with_both_numbers(self, served: Served, length: int) -> None:
        error = error_of(served.post(PATH, {"prompt": [65] * length}))

        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "prompt"
        assert str(length) in error["message"]
        assert "256" in error["message"]

    @pytest.mark.parametrize("limit", [{}, {"max_tokens": 50}, {"max_tokens": None}])
    def test_an_answer_ends_where_it_is_full(self, served: Served, limit: dict[str, object]) -> None:
        body = served.post(PATH, {"prompt": [65] * 250, "ignore_eos": True, **limit}).json()

        assert body["usage"]["completion_tokens"] == 6
        assert body["choices"][0]["finish_reason"] == "length"

    def test_truncation_leaves_room_for_the_answer(self) -> None:
        with serving(allow_auto_truncate=True) as served:
            body = served.post(PATH, {"prompt": [65] * 300, "max_tokens": 20, "ignore_eos": True}).json()

        assert body["usage"]["completion_tokens"] == 20
        assert body["usage"]["prompt_tokens"] == 236


class TestStopStrings:
    @pytest.mark.parametrize(
        ("stop", "text", "reason"),
        [
            (["DEF"], "ABC", "stop"),
            ("C", "AB", "stop"),
            (["EF", "DEFG"], "ABCD", "stop"),
            ([], "ABCDEFG", "stop"),
            (None, "ABCDEFG", "stop"),
        ],
    )
    def test_both_modes_stop_alike(self, stop: object, text: str, reason: str) -> None:
        with serving(ScriptedRunner(script=scripted_answers("ABCDEFG"))) as served:
            body = {"prompt": "x", "stop": stop}
            choice = served.post(PATH, body).json()["choices"][0]
            chunks = served.events(PATH, body)

        assert (choice["text"], choice["finish_reason"]) == (text, reason)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        assert chunks[-1]["choices"][0]["finish_reason"] == reason

    @pytest.mark.parametrize("stop", [[""], "", ["a"] * 17, "a" * 257, 5, [5]])
    def test_others_are_refused(self, served: Served, stop: object) -> None:
        assert error_of(served.post(PATH, {"prompt": "x", "stop": stop}))["param"] == "stop"


@pytest.mark.parametrize("stop", [None, "never"])
def test_no_piece_of_a_character_is_streamed(stop: str | None) -> None:
    text = "你好👩‍👩‍👧é"
    with serving(ScriptedRunner(script=scripted_answers(text))) as served:
        body = {"prompt": "x", "max_tokens": 100, "stop": stop}
        deltas = [chunk["choices"][0]["text"] for chunk in served.events(PATH, body)]
        plain = served.post(PATH, body).json()["choices"][0]["text"]

    assert "".join(deltas) == plain == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as served:
        monkeypatch.setattr(served.deployment.tokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenised"))
        error = error_of(served.post(PATH, {"prompt": "x" * 1_000_000}))

    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")


def test_a_text_that_is_cut_to_fit_may_have_any_length() -> None:
    with serving(allow_auto_truncate=True) as served:
        assert served.post(PATH, {"prompt": "x" * 1_000_000, "max_tokens": 1}).status_code == 200
