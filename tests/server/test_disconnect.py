import json
from collections.abc import Iterator

import pytest

from tests.server.serving import ENDLESS, Served, patient_runner, serving, wait_until

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 900_000, "ignore_eos": True}
NATIVE = {"text": "x", "sampling_params": {"max_new_tokens": 900_000, "ignore_eos": True}}
CALLS = [("/v1/completions", ENDLESS), ("/v1/chat/completions", CHAT), ("/generate", NATIVE)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Two requests run at a time, further ones wait."""
    with serving(patient_runner(), max_running_requests=2) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), CALLS)
def test_a_client_that_leaves_frees_its_work(served: Served, path: str, body: dict[str, object], stream: bool) -> None:
    connections = [served.call(path, {**body, "stream": stream}) for _ in range(5)]
    wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 2)
    wait_until(lambda: served.deployment.fleet.first.stats().queued_requests == 3)
    for connection in connections:
        connection.close()

    served.wait_idle()
    assert served.deployment.bridge.open_requests == 0
    assert served.post("/v1/completions", {"prompt": "y", "max_tokens": 2}).status_code == 200


def test_a_stream_left_in_the_middle_frees_its_work(served: Served) -> None:
    with served.client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True, "n": 2}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")

    served.wait_idle()


def test_only_the_client_that_leaves_is_cut_off(served: Served) -> None:
    body = {"prompt": "other", "temperature": 0, "max_tokens": 300, "ignore_eos": True}
    alone = served.post("/v1/completions", body).json()["choices"]
    leaving = served.call("/v1/completions", ENDLESS)
    wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 1)
    before = served.samples()["sglk_requests_received_total"]
    staying = served.call("/v1/completions", body)
    # However soon it may be over.
    wait_until(lambda: served.samples()["sglk_requests_received_total"] == before + 1)
    leaving.close()

    choices = json.loads(staying.getresponse().read())["choices"]
    staying.close()
    assert choices == alone
    served.wait_idle()
