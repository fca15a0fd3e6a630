from collections.abc import Iterator

import pytest

from tests.server.serving import ENDLESS, Served, error_of, patient_runner, serving, wait_until

PATH = "/admin/runtime"


@pytest.fixture
def own() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_parameters_change_and_answers_stay(own: Served) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 20, "ignore_eos": True}
    before = own.post("/v1/completions", body).json()["choices"]
    changes = {"chunked_prefill_size": 512, "max_running_requests": 3, "schedule_policy": "lpm", "page_size": 16}
    reply = own.post(PATH, changes).json()

    assert {name: reply["runtime"][name] for name in changes} == changes
    assert reply["kv_capacity_tokens"] == 4096
    assert own.get(PATH).json() == reply
    assert own.get("/server_info").json()["runtime"] == reply["runtime"]
    assert own.post("/v1/completions", body).json()["choices"] == before


def test_changes_add_up(own: Served) -> None:
    own.post(PATH, {"max_running_requests": 3})
    own.post(PATH, {"radix_min_len": 64})

    assert own.get(PATH).json()["runtime"]["max_running_requests"] == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunked_prefil_size": 512}, "did you mean 'chunked_prefill_size'"),
        ({"max_running_requests": 0}, "at least 1"),
        ({"max_running_requests": "32"}, "an integer"),
        ({"max_running_requests": True}, "an integer"),
        ({"max_running_requests": None}, "an integer"),
        ({"disable_radix_cache": 1}, "true or false"),
        ({"mem_fraction_static": 1.5}, "(0, 1]"),
        ({"schedule_policy": "lmp"}, "lpm"),
        ({"chunked_prefill_size": 100, "page_size": 16}, "multiple"),
        ({"dtype": "bf16"}, "live keys: chunked_prefill_size"),
        ({"tp_size": 2}, "restart"),
        ({"context_length": 100_000}, "256"),
    ],
)
def test_wrong_changes_are_refused_in_one_line(own: Served, changes: dict[str, object], words: str) -> None:
    before = own.get(PATH).json()

    assert words in error_of(own.post(PATH, changes))["message"]
    assert own.get(PATH).json() == before


@pytest.mark.parametrize(
    "changes",
    [{"x" * 10**5: 1}, {"schedule_policy": "x" * 10**5}, {"max_running_requests": [5] * 10**5}, {"dtype": "x" * 10**5}],
    ids=["key", "value", "type", "fixed"],
)
def test_refusals_repeat_little_of_what_is_refused(own: Served, changes: dict[str, object]) -> None:
    assert len(error_of(own.post(PATH, changes))["message"]) < 600


def test_a_fixed_key_may_be_repeated(own: Served) -> None:
    assert own.post(PATH, own.get(PATH).json()["runtime"]).status_code == 200


@pytest.mark.parametrize("content", [b"", b"[]", b"{"])
def test_other_bodies_are_refused(own: Served, content: bytes) -> None:
    error_of(own.client.post(PATH, content=content))


class TestWhileRequestsAreLive:
    @pytest.fixture
    def busy(self) -> Iterator[Served]:
        with serving(patient_runner()) as served:
            connection = served.call("/v1/completions", ENDLESS)
            wait_until(lambda: served.deployment.bridge.open_requests == 1)
            yield served
            connection.close()

    def test_changes_wait_for_a_quiet_moment(self, busy: Served) -> None:
        assert error_of(busy.post(PATH, {"max_running_requests": 3}), 409)["code"] == "engine_busy"

    def test_force_aborts_them(self, busy: Served) -> None:
        assert busy.post(f"{PATH}?force=true", {"max_running_requests": 3}).status_code == 200

    def test_the_cache_is_not_flushed(self, busy: Served) -> None:
        assert error_of(busy.post("/flush_cache"), 409)["code"] == "engine_busy"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/flush_cache"), ("POST", "/flush_cache"), ("POST", "/reset_prefix_cache")]
)
def test_a_flushed_cache_remembers_nothing(own: Served, method: str, path: str) -> None:
    def cached() -> int:
        body = {"text": "a prompt", "sampling_params": {"max_new_tokens": 1}}
        tokens: int = own.post("/generate", body).json()["meta_info"]["cached_tokens"]
        return tokens

    assert [cached(), cached()] == [0, 7]
    assert own.client.request(method, path).status_code == 200
    assert cached() == 0


def test_a_number_that_no_array_holds_is_refused(own: Served) -> None:
    for number in (10**30, 2**31):
        assert "too large" in error_of(own.post(PATH, {"max_running_requests": number}))["message"]
