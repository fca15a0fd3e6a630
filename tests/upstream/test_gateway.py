"""sglk's router before engines elsewhere: a server of its own, and others that it finds by their URLs."""

import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglk.bench.target import LaunchedServer
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.config.groups import parse_groups
from sglk.errors import ConfigError
from sglk.server.gateway import all_elsewhere
from sglk.testing.tiny import write_tiny_model
from sglk.upstream.port import free_port
from tests.upstream.stand_ins import client, stand_in
from tests.waiting import wait_until

GONE = "{name: gone, url: 'http://127.0.0.1:9', weight: 1}"
"""A server that is never there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def gpu(folder: Path) -> Iterator[str]:
    with stand_in(folder, "gpu") as url:
        yield url


@pytest.fixture(scope="module")
def other(folder: Path) -> Iterator[str]:
    with stand_in(folder, "other") as url:
        yield url


def gateway(folder: Path, name: str, *words: str) -> LaunchedServer:
    given = [*words, "server.served_model_name=m", "profiles=none"]
    return LaunchedServer(given, log=folder / f"{name}.log", timeout_s=240)


@pytest.fixture(scope="module")
def bad(folder: Path) -> Iterator[str]:
    """Generates its first token, by which it is found, and nothing after it."""
    with stand_in(folder, "bad", STAND_IN_FAILS_AFTER="1") as url:
        yield url


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def odd() -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers requests with the bytes of a list, and closes."""
    sound = b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"choices":[1]}'
    answers: list[bytes] = []

    class Odd(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b"".join(iter(self.rfile.readline, b"\r\n"))
            length = re.search(rb"content-length: (\d+)", head)
            self.rfile.read(int(length.group(1)) if length else 0)
            self.wfile.write(answers[0] if answers and b"POST" in head else sound)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", answers
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def several(folder: Path, gpu: str, other: str, bad: str, odd: tuple[str, list[bytes]]) -> Iterator[httpx.Client]:
    """A gateway before servers of which `gpu` gets a key, `bad` and `odd` no traffic, and `gone` is not there."""
    (folder / "key").write_text("far-key\n")
    keyed = f"{{name: gpu, url: '{gpu}', weight: 80, api_key_file: '{folder / 'key'}'}}"
    more = f"{{name: other, url: '{other}/v1', weight: 20}}, {{name: bad, url: '{bad}', weight: 0}}"
    more += f", {{name: odd, url: '{odd[0]}', weight: 0}}"
    limits = ("router.step_timeout_s=6", "router.breaker_failures=100")
    with gateway(folder, "several", f"groups=[{keyed}, {more}, {GONE}]", *limits) as server, client(server.url) as http:
        yield http


def ask(http: httpx.Client, prompt: str, **fields: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"model": "m", "prompt": prompt, **fields})


def picks(http: httpx.Client) -> dict[str, int]:
    groups = http.get("/admin/groups").json()["groups"]
    return {group["name"]: sum(each["picks"] for each in group["replicas"]) for group in groups}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_comes_byte_for_byte(several: httpx.Client, gpu: str, stream: bool) -> None:
    with client(gpu) as direct:
        expected = ask(direct, "hello", stream=stream)
    answer = ask(several, "hello", stream=stream)
    assert (answer.status_code, answer.content) == (200, expected.content)
    assert answer.headers["content-type"] == expected.headers["content-type"]


def test_what_an_engine_refuses_comes_as_it_is_and_opens_no_breaker(several: httpx.Client) -> None:
    before = sum(picks(several).values())
    for _ in range(5):
        answer = ask(several, "refuse this")
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "too long")
    assert sum(picks(several).values()) == before + 5
    replicas = [each for group in several.get("/admin/groups").json()["groups"] for each in group["replicas"]]
    assert {each["breaker"] for each in replicas if not each["name"].startswith("gone")} == {"closed"}


def test_paths_and_headers_of_any_letters_are_passed_on(several: httpx.Client) -> None:
    odd = several.post("/v1/no%01such%00route", json={}, headers=[(b"x-name", b"caf\xe9")])
    assert (odd.status_code, odd.json()["error"]["message"]) == (404, "no such route")


@pytest.mark.parametrize("order", ["cut", "stall"])
def test_a_stream_that_breaks_off_ends_with_an_error_and_without_done(several: httpx.Client, order: str) -> None:
    text = ask(several, f"{order} it", stream=True).text
    assert "[DONE]" not in text
    assert '"type":"server_error"' in text.splitlines()[-2]
    told = {"cut": "ended its stream before it was complete", "stall": r"its stream has said nothing for \d+"}
    assert re.search(told[order], text)


def test_a_client_that_leaves_ends_its_request_at_the_engine(several: httpx.Client, gpu: str, other: str) -> None:
    with client(gpu) as first, client(other) as second:
        before = sum(each.get("/seen").json()["aborted"] for each in (first, second))
        with several.stream("POST", "/v1/completions", json={"model": "m", "prompt": "slow", "stream": True}) as answer:
            next(answer.iter_bytes())
        # A stream that stalled in another test may be noticed as late as now.
        wait_until(
            lambda: sum(each.get("/seen").json()["aborted"] for each in (first, second)) > before,
            120,
            "it is aborted",
        )
    wait_until(
        lambda: all(not group["open_requests"] for group in several.get("/admin/groups").json()["groups"]),
        120,
        "it is over",
    )


def test_the_weights_hold_and_a_way_back_exists(several: httpx.Client) -> None:
    several.patch("/admin/groups/weights", json={"gpu": 100, "other": 0})
    before = picks(several)
    for _ in range(5):
        assert ask(several, "hello").status_code == 200
    assert picks(several) == {**before, "gpu": before["gpu"] + 5}
    several.post("/admin/groups/rollback").raise_for_status()
    several.post("/admin/groups/gpu/drain").raise_for_status()
    assert ask(several, "hello").status_code == 200
    assert picks(several)["other"] == before["other"] + 1
    several.post("/admin/groups/gpu/undrain").raise_for_status()


def test_a_conversation_stays_where_it_began(several: httpx.Client) -> None:
    before = picks(several)
    for _ in range(6):
        several.post("/v1/completions", json={"model": "m", "prompt": "hi"}, headers={"x-session-id": "abc"})
    moved = {name: count - before[name] for name, count in picks(several).items()}
    assert sorted(moved.values()) == [0, 0, 0, 0, 6]


def test_figures_are_told_for_each_group(several: httpx.Client) -> None:
    wait_until(
        lambda: 'sglk_running_requests{group="gpu",model="m",replica="gpu/0"} 2.0' in several.get("/metrics").text,
        120,
        "the figure",
    )
    text = several.get("/metrics").text
    assert 'sglk_time_to_first_token_seconds_count{group="gpu",model="m",replica="gpu/0"}' in text
    assert 'sglk_kv_capacity_tokens{group="other",model="m",replica="other/0"} 4096.0' in text
    assert several.get("/health_generate").status_code == 200
    assert several.get("/v1/models").json()["data"][0]["id"] == "m"
    assert several.get("/dashboard").status_code == 200


def test_another_group_takes_over_what_has_not_begun(several: httpx.Client) -> None:
    several.patch("/admin/groups/weights", json={"gpu": 1, "other": 0, "bad": 1000}).raise_for_status()
    for stream in (False, True):
        assert "error" not in ask(several, "hello", stream=stream).text
    replica = several.get("/admin/groups").json()["groups"][2]["replicas"][0]
    assert (replica["ended"], replica["moved"]) == ({"failed": 2}, 2)
    several.post("/admin/groups/rollback").raise_for_status()


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (b"\x00\xff no answer\r\n\r\n", 502, "illegal status line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", 502, "without sending complete message body"),
        (b"", 502, "Server disconnected without sending a response"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", 502, "odd/0 answered 503: busy"),
        (EVENTS + b"5\r\ndata:\r\nzz\r\n", 200, "illegal chunk header"),
        (EVENTS + b"0\r\n\r\n", 502, "ended its stream before it was complete"),
    ],
)
def test_what_is_no_answer_is_told_as_one_that_the_server_did_not_give(
    several: httpx.Client, odd: tuple[str, list[bytes]], answer: bytes, status: int, told: str
) -> None:
    several.patch("/admin/groups/weights", json={"gpu": 0, "other": 0, "gone": 0, "odd": 1}).raise_for_status()
    odd[1][:] = [answer]
    given = ask(several, "hello")
    several.post("/admin/groups/rollback").raise_for_status()
    assert given.status_code == status
    assert told in given.text
    assert '"type":"server_error"' in given.text
    assert "[DONE]" not in given.text


STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


@pytest.mark.parametrize(("last", "outcome"), [(STOP, "completed"), (b"event: ping\ndata: {}\n\n", "failed")])
def test_streams_without_done_end_by_their_own_last_event(
    several: httpx.Client, odd: tuple[str, list[bytes]], last: bytes, outcome: str
) -> None:
    def ended() -> int:
        (group,) = [each for each in several.get("/admin/groups").json()["groups"] if each["name"] == "odd"]
        return int(group["replicas"][0]["ended"].get(outcome, 0))

    several.patch("/admin/groups/weights", json={"gpu": 0, "other": 0, "gone": 0, "odd": 1}).raise_for_status()
    odd[1][:] = [EVENTS + b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)]
    before = ended()
    given = several.post("/v1/messages", json={"messages": [{"role": "user", "content": "hi"}], "stream": True})
    several.post("/admin/groups/rollback").raise_for_status()
    assert ended() == before + 1
    if outcome == "completed":
        assert given.content == last
    else:
        assert given.text.splitlines()[-3] == "event: error"
        assert given.text.splitlines()[-2].startswith(
            'data: {"type":"error","error":{"message":"odd/0 ended its stream'
        )


def test_a_server_gets_its_own_key_and_the_requests_id(several: httpx.Client, gpu: str) -> None:
    several.patch("/admin/groups/weights", json={"gpu": 1, "other": 0}).raise_for_status()
    told = {"authorization": "Bearer ours", "x-api-key": "ours", "x-request-id": "mine"}
    answer = several.post("/v1/completions", json={"prompt": "hi"}, headers=told)
    assert answer.headers.get_list("x-request-id") == ["mine"]
    with client(gpu) as direct:
        seen = direct.get("/seen").json()["headers"]
    assert (seen["authorization"], seen["x-request-id"]) == ("Bearer far-key", "mine")
    assert "x-api-key" not in seen
    several.post("/admin/groups/rollback").raise_for_status()


def test_it_serves_without_the_server_that_is_not_there_and_without_torch(several: httpx.Client, folder: Path) -> None:
    (gone,) = [group for group in several.get("/admin/groups").json()["groups"] if group["name"] == "gone"]
    assert gone["replicas"][0]["state"] in ("failed", "restarting")
    said = (folder / "several.log").read_text()
    assert (
        "WARNING: serving without gone/0, which is looked for again: gone/0: the server at http://127.0.0.1:9" in said
    )
    process = Path("/proc") / str(several.get("/server_info").json()["pid"])
    assert "libtorch" not in (process / "maps").read_text()


@pytest.mark.slow
def test_a_server_that_comes_late_is_taken_in(folder: Path, gpu: str) -> None:
    port = free_port()
    groups = f"groups=[{{name: gpu, url: '{gpu}', weight: 1}}, {{name: late, url: 'http://127.0.0.1:{port}'}}]"
    with gateway(folder, "early", groups, "router.restart_wait_s=0.1") as server, client(server.url) as http:
        assert ask(http, "hello").status_code == 200
        with stand_in(folder, "late", port):
            wait_until(
                lambda: http.get("/admin/groups").json()["groups"][1]["replicas"][0]["state"] == "serving", 120, "late"
            )
            assert {ask(http, "hello").status_code for _ in range(4)} == {200}
            assert picks(http)["late"] >= 1


@pytest.mark.slow
def test_a_server_of_sglk_is_a_group_as_well(folder: Path) -> None:
    model = write_tiny_model(folder / "tiny")
    with LaunchedServer(
        [f"model={model}", "server.served_model_name=m", "profiles=none"], log=folder / "native.log"
    ) as far:
        body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0}
        with gateway(folder, "far", f"groups=[{{name: far, url: '{far.url}'}}]") as server:
            with client(far.url) as direct, client(server.url) as http:
                expected = direct.post("/v1/completions", json=body).json()["choices"]
                assert http.post("/v1/completions", json=body).json()["choices"] == expected
                ids = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 6, "temperature": 0}}
                assert http.post("/generate", json=ids).json()["output_ids"]
            far.close()
            with client(server.url) as http:
                wait_until(lambda: http.get("/health").status_code == 503, 120, "it is missed")
                assert "far" in http.get("/health").json()["reason"]


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ({"url": "ftp://x"}, "does not begin with http"),
        ({"url": "http://x:1?key=2"}, "has a query or a fragment"),
        ({"url": "http://me:secret@x:1"}, r"me:\*\*\*@x:1' carries a name or a password"),
        ({"url": "http://x:1", "devices": ["cpu:0"]}, "leave out devices"),
        ({"api_key_file": "x", "devices": ["cpu:0"]}, "has an api_key_file and no url"),
    ],
)
def test_a_group_is_of_devices_or_a_server(group: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_groups([{"name": "a", **group}], "cpu")


def test_engines_of_this_process_are_no_groups_of_a_gateway() -> None:
    replicas = replica_configs(
        compose("serve", ["groups=[{name: a, url: 'http://x:1'}, {name: b, devices: ['cpu:0']}]"])
    )
    with pytest.raises(ConfigError, match="start a second `sglk serve` for the former"):
        all_elsewhere(replicas)
