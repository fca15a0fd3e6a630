"""Which answers of a server speak against it, and which against what it was asked."""

import asyncio
import json
import re
import socketserver
import threading
from collections.abc import Iterator

import pytest

from sglk.cluster.breaker import Breaker, BreakerSettings
from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.router import Router
from sglk.engine.messages import Output
from sglk.upstream.engine import UpstreamEngine
from sglk.upstream.messages import ProxyOutput, ProxyRequest
from sglk.upstream.probe import without_token
from tests.upstream.stand_ins import stand_in
from tests.waiting import wait_until

GOOD = b'{"choices": [{"text": " world"}], "data": [{"id": "m"}]}'
DEEP = b"[" * 200_000
MANY = 20
"""Requests in a row that fail, with a server that is well, before it is taken out."""


class Server(socketserver.ThreadingTCPServer):
    """Answers requests with `answer` and probes with `token`; holds a probe until it `may_go_on`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answer = (500, b"no")
        self.token = (200, GOOD)
        self.encoding = "identity"
        """Of a probe's answer, as it claims."""
        self.trickles = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.over = threading.Event()
        self.looks = 0
        self.probes: list[dict[str, object]] = []
        self.headers: list[bytes] = []


class Connection(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        head = b"".join(iter(self.rfile.readline, b"\r\n"))
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = self.rfile.read(int(length.group(1)) if length else 0)
        if b"GET /health" in head:
            self.server.looks += 1
        if head.startswith(b"GET"):
            self.tell(200, GOOD)
        elif b'"Hello"' in body:
            self.server.probes.append(json.loads(body))
            self.server.may_go_on.wait()
            self.trickle() if self.server.trickles else self.tell(*self.server.token, self.server.encoding)
        else:
            self.server.headers.append(head)
            self.tell(*self.server.answer)

    def tell(self, status: int, body: bytes, encoding: str = "identity") -> None:
        length = f"content-length: {len(body)}\r\ncontent-encoding: {encoding}"
        self.wfile.write(f"HTTP/1.1 {status} Told\r\n{length}\r\nconnection: close\r\n\r\n".encode() + body)

    def trickle(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while not self.server.over.wait(0.001):
                self.wfile.write(b" ")
        except OSError:
            return


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine not pass for a server that gives no token, and nobody wait for a look."""
    monkeypatch.setattr("sglk.upstream.engine.PROBE_TIMEOUT_S", 600.0)
    monkeypatch.setattr("sglk.upstream.engine.LOOK_S", 0.01)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.may_go_on.set()
        server.over.set()
        server.shutdown()


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stand_in(tmp_path_factory.mktemp("well"), "well") as url:
        yield url


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Answers every request with 500."""
    with stand_in(tmp_path_factory.mktemp("ill"), "ill", STAND_IN_FAILS_AFTER="0") as url:
        yield url


class Asking:
    """Asks a server, whose breaker opens at the second failure in a row."""

    def __init__(self, url: str, model: str | None = None, doubts: int = MANY) -> None:
        self.engine = UpstreamEngine("a/0", url, model=model)
        self.replica = Replica("a/0", self.engine, Breaker(BreakerSettings(failures=2, doubts=doubts)))
        self.router = Router([DeviceGroup("a", [self.replica])], {"a": 1.0})
        self.asked = 0
        self.loop = asyncio.new_event_loop()

    async def ask(self, prompt: str = "fail this", model: str = "m", headers: str = "") -> Output:
        ends: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        self.asked += 1
        request = ProxyRequest(
            f"r{self.asked}",
            (),
            path="/v1/completions",
            headers=(("x-name", headers),),
            body=json.dumps({"model": model, "prompt": prompt}).encode(),
        )
        self.router.submit(request, lambda output: ends.set_result(output) if output.finish else None)
        return await asyncio.wait_for(ends, 600)

    def __call__(self, times: int = 1, prompt: str = "fail this", model: str = "m", headers: str = "") -> list[Output]:
        """Ask so often at the same time."""

        async def ask_all() -> list[Output]:
            return await asyncio.gather(*(self.ask(prompt, model, headers) for _ in range(times)))

        return self.loop.run_until_complete(ask_all())

    def close(self) -> None:
        async def end() -> None:
            await asyncio.to_thread(self.engine.shutdown)
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

        self.loop.run_until_complete(end())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture
def asking() -> Iterator[type[Asking]]:
    made: list[Asking] = []

    class Kept(Asking):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)  # type: ignore[arg-type]
            made.append(self)

    yield Kept
    for each in made:
        each.close()


def test_a_request_that_fails_alone_opens_no_breaker(well: str, asking: type[Asking]) -> None:
    ask = asking(well)
    ends = [*ask(MANY - 1), *ask(1, "hello"), *ask(MANY - 1)]
    assert sum("a/0 answered 500: " in str(end.finish) for end in ends) == 2 * MANY - 2
    assert dict(ask.replica.counters.ended) == {"failed": 2 * MANY - 2, "completed": 1}
    assert (ask.replica.breaker.opened, ask.replica.breaker.sick_s) == (0, 0.0)


def test_a_server_that_gives_tokens_and_fails_all_that_it_is_asked_is_passed_over_and_not_started_again(
    well: str, asking: type[Asking]
) -> None:
    ask = asking(well)
    ask(MANY)
    breaker = ask.replica.breaker
    assert (breaker.opened, breaker.state) == (1, "open")
    for _ in range(3):
        ask()  # as a probe before its time: nobody else is left
    assert (breaker.opened, breaker.failed_probes) == (4, 0)
    ask(1, "hello")
    assert breaker.state == "closed"


def test_a_server_that_fails_at_any_request_is_taken_out(ill: str, asking: type[Asking]) -> None:
    ask = asking(ill, doubts=1_000_000)
    wait_until(lambda: bool(ask(1, "hello")) and ask.replica.breaker.opened > 0, 120, "it is found to give no token")
    wait_until(lambda: bool(ask(1, "hello")) and ask.replica.breaker.failed_probes >= 2, 120, "so are its probes")


def test_a_server_that_recovers_is_given_the_benefit_of_the_doubt_again(server: Server, asking: type[Asking]) -> None:
    server.token = (500, b"no")
    ask = asking(server.url, doubts=1_000_000)
    wait_until(lambda: bool(ask()) and ask.replica.breaker.opened > 0, 120, "it is found to give no token")
    server.token = (200, GOOD)
    seen = len(server.probes)
    # The one after the next has been asked after the next one's answer was taken to heart.
    wait_until(lambda: bool(ask()) and len(server.probes) >= seen + 3, 120, "it gives tokens")
    failed = ask.replica.breaker.failed_probes
    ask(5)
    assert ask.replica.breaker.failed_probes == failed


def test_a_failure_is_told_at_once_and_one_probe_settles_all(server: Server, asking: type[Asking]) -> None:
    server.may_go_on.clear()
    ask = asking(server.url, doubts=1_000_000)
    assert len(ask(60)) == 60
    wait_until(lambda: len(server.probes) == 1, 120, "it is asked for a token")
    assert len(ask(60)) == 60
    assert len(server.probes) == 1
    assert ask.replica.breaker.opened == 0


@pytest.mark.parametrize(("named", "asked"), [(None, "m"), ("base", "base")])
def test_no_client_chooses_what_the_probe_asks_for(
    named: str | None, asked: str, server: Server, asking: type[Asking]
) -> None:
    ask = asking(server.url, named)
    ask(1, model="base:adapter")
    ask(1, model="\ud800")
    wait_until(lambda: len(server.probes) > 0, 120, "it is asked for a token")
    assert {str(probe["model"]) for probe in server.probes} == {asked}


@pytest.mark.parametrize("token", [DEEP, b"[]", b'{"choices": []}', b"\xff"])
def test_a_server_whose_tokens_are_none_is_taken_out(token: bytes, server: Server, asking: type[Asking]) -> None:
    server.token = (200, token)
    ask = asking(server.url, doubts=1_000_000)
    wait_until(lambda: bool(ask()) and ask.replica.breaker.opened > 0, 120, "it is found to give no token")
    assert str(without_token(server.url)).startswith("/v1/completions answers with")


def test_a_server_whose_token_nobody_can_unpack_is_taken_out_and_still_looked_after(
    server: Server, asking: type[Asking]
) -> None:
    server.encoding = "gzip"
    ask = asking(server.url, doubts=1_000_000)
    wait_until(lambda: bool(ask()) and ask.replica.breaker.opened > 0, 120, "it is found to give no token")
    seen = server.looks
    wait_until(lambda: server.looks > seen + 1, 120, "it is looked after again")


def test_a_token_that_comes_in_drops_without_end_is_not_waited_for(
    server: Server, asking: type[Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglk.upstream.engine.PROBE_TIMEOUT_S", 0.2)
    server.trickles = True
    ask = asking(server.url)
    ask()
    wait_until(lambda: len(server.probes) > 0, 120, "it is asked for a token")
    seen = server.looks
    wait_until(lambda: server.looks > seen + 1, 120, "it is looked after again")
    assert ask.engine.is_alive


@pytest.mark.parametrize("answer", [b'{"usage": ' + DEEP, b'{"usage": 1, "usage": "\xff"}'])
def test_an_answer_whose_counts_nobody_can_read_is_passed_on(
    answer: bytes, server: Server, asking: type[Asking]
) -> None:
    server.answer = (200, answer)
    (end,) = asking(server.url)()
    assert isinstance(end, ProxyOutput)
    assert end.data == answer


def test_headers_of_other_letters_than_asciis_reach_the_server_as_they_are(
    server: Server, asking: type[Asking]
) -> None:
    server.answer = (200, GOOD)
    asking(server.url)(headers="caf\xe9")
    assert b"x-name: caf\xe9\r\n" in server.headers[0]


def test_what_cannot_be_sent_ends_and_does_not_speak_against_the_server(server: Server, asking: type[Asking]) -> None:
    ask = asking(server.url)
    ends = [ask(headers="\u4f60")[0] for _ in range(3)]
    assert all("a/0: UnicodeEncodeError: " in str(end.finish) for end in ends)
    assert dict(ask.replica.counters.ended) == {"failed": 3}
    assert ask.replica.breaker.opened == 0


@pytest.mark.parametrize(("prompt", "status"), [("refuse this", 400), ("unable to", 501)])
def test_what_a_server_refuses_is_passed_on_and_no_failure(
    prompt: str, status: int, well: str, asking: type[Asking]
) -> None:
    ask = asking(well)
    ends = ask(3, prompt)
    assert [end.status for end in ends if isinstance(end, ProxyOutput)] == [status] * 3
    assert dict(ask.replica.counters.ended) == {"refused": 3}
    assert ask.replica.breaker.opened == 0
