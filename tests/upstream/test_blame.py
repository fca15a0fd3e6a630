"""Which answers of a server speak against it, and which against what it was asked."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from sglk.cluster.breaker import Breaker, BreakerSettings
from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.router import Router
from sglk.engine.messages import Output
from sglk.upstream.engine import UpstreamEngine
from sglk.upstream.messages import ProxyOutput, ProxyRequest
from tests.upstream.stand_ins import stand_in


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine not pass for a server that gives no token."""
    monkeypatch.setattr("sglk.upstream.relay.PROBE_TIMEOUT_S", 60.0)


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stand_in(tmp_path_factory.mktemp("well"), "well") as url:
        yield url


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Answers every request with 500."""
    with stand_in(tmp_path_factory.mktemp("ill"), "ill", STAND_IN_FAILS_AFTER="0") as url:
        yield url


def asked(url: str, prompt: str, times: int) -> tuple[Replica, list[Output]]:
    """Send a prompt so often to a server whose breaker opens at the second failure in a row."""
    engine = UpstreamEngine("a/0", url)
    replica = Replica("a/0", engine, Breaker(BreakerSettings(failures=2)))
    router = Router([DeviceGroup("a", [replica])], {"a": 1.0})

    async def ask(number: int) -> Output:
        ends: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        body = json.dumps({"model": "m", "prompt": prompt}).encode()
        request = ProxyRequest(f"r{number}", (), path="/v1/completions", body=body)
        router.submit(request, lambda output: ends.set_result(output) if output.finish else None)
        return await asyncio.wait_for(ends, 60)

    async def ask_all() -> list[Output]:
        try:
            return [await ask(number) for number in range(times)]
        finally:
            await asyncio.to_thread(engine.shutdown)

    return replica, asyncio.run(ask_all())


def test_a_request_that_fails_alone_opens_no_breaker(well: str) -> None:
    replica, ends = asked(well, "fail this", 5)
    assert all("a/0 answered 500: " in str(end.finish) for end in ends)
    assert dict(replica.counters.ended) == {"failed": 5}
    assert (replica.breaker.opened, replica.breaker.sick_s) == (0, 0.0)


def test_a_server_that_fails_at_any_request_is_taken_out(ill: str) -> None:
    replica, _ = asked(ill, "hello", 2)
    assert dict(replica.counters.ended) == {"failed": 2}
    assert replica.breaker.opened == 1


@pytest.mark.parametrize(("prompt", "status"), [("refuse this", 400), ("unable to", 501)])
def test_what_a_server_refuses_is_passed_on_and_no_failure(well: str, prompt: str, status: int) -> None:
    replica, ends = asked(well, prompt, 3)
    assert [end.status for end in ends if isinstance(end, ProxyOutput)] == [status] * 3
    assert dict(replica.counters.ended) == {"refused": 3}
    assert replica.breaker.opened == 0
