from collections.abc import Iterator

import pytest

from tests.server.serving import ENDLESS, Served, error_of, patient_runner, serving, wait_until

SHORT = {"prompt": "y", "max_tokens": 1}


@pytest.fixture
def full() -> Iterator[Served]:
    """One request runs and two wait: all that the server takes."""
    with serving(patient_runner(), server={"max_queued_requests": 2}, max_running_requests=1) as served:
        connections = [served.call("/v1/completions", ENDLESS) for _ in range(3)]
        wait_until(lambda: _state(served) == (3, 1, 2))
        yield served
        for connection in connections:
            connection.close()


def _state(served: Served) -> tuple[int, int, int]:
    """Return open, running and queued requests: two may be queued before the third has even arrived."""
    stats = served.deployment.fleet.first.stats()
    return served.deployment.bridge.open_requests, stats.running_requests, stats.queued_requests


def test_one_more_request_is_refused(full: Served) -> None:
    for body in (SHORT, {**SHORT, "stream": True}):
        response = full.post("/v1/completions", body)
        error = error_of(response, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert int(response.headers["retry-after"]) >= 1
    error_of(full.post("/generate", {"text": "y"}), 429)


def test_the_full_server_is_alive(full: Served) -> None:
    assert full.get("/health").status_code == 200


def test_room_is_made_as_soon_as_a_request_ends(full: Served) -> None:
    full.deployment.bridge.abort_all()
    full.wait_idle()

    assert full.post("/v1/completions", SHORT).status_code == 200


def test_a_request_that_could_never_fit_is_not_told_to_retry() -> None:
    with serving(server={"max_queued_requests": 2}, max_running_requests=1) as served:
        error = error_of(served.post("/v1/completions", {**SHORT, "n": 4}))

    assert error["param"] == "n"
