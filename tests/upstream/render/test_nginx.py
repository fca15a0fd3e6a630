"""The rendered nginx, run as it is in front of servers that tell their names."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from sglk.cli import main
from sglk.config.check_render import SECOND_PORT

MAIN = "daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\n"
HTTP = (
    "http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;"
    " fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; include {file}; }}\n"
)


@contextmanager
def server(name: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(name)))
            self.send_header("asked-host", self.headers["host"])
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running.server_port
    finally:
        running.shutdown()
        running.server_close()


def free_port() -> int:
    for port in range(20011, 40000, 13):
        try:
            for each in (port, port + SECOND_PORT):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port
    raise AssertionError("no free port")


@pytest.fixture
def entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[httpx.Client]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    with ExitStack() as stack:
        ports = {name: stack.enter_context(server(name)) for name in ("own", "large", "small", "off")}
        weights = {"large": 80, "small": 20, "off": 0}
        shares = ",".join(f"'127.0.0.1:{ports[name]}={weight}'" for name, weight in weights.items())
        words = ["target=nginx", f"server.port={ports['own']}", f"render.listen={port}"]
        assert main(["render", *words, f"render.routes={{other: [{shares}]}}"]) == 0
        file = tmp_path / "sglk.conf"
        file.write_text(capsys.readouterr().out)
        whole = tmp_path / "nginx.conf"
        whole.write_text((MAIN + HTTP).format(folder=tmp_path, file=file))
        command = [nginx, "-e", str(tmp_path / "error.log"), "-p", str(tmp_path), "-c", str(whole)]
        checked = subprocess.run([*command, "-t"], text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120))
        deadline = time.monotonic() + 120
        while True:
            try:
                client.get("/health")
                break
            except httpx.TransportError:
                assert process.poll() is None
                assert time.monotonic() < deadline
        yield client


def ask(entry: httpx.Client, body: object) -> httpx.Response:
    return entry.post("/v1/completions", json=body)


def test_requests_go_by_model_and_weight(entry: httpx.Client) -> None:
    told = Counter(ask(entry, {"model": "other", "prompt": "x"}).text for _ in range(50))
    assert told == {"large": 40, "small": 10}
    assert ask(entry, {"prompt": "x", "model": "smollm2"}).text == "own"
    assert ask(entry, {"prompt": "x"}).text == "own"
    assert entry.get("/v1/models").text == "own"


def test_a_model_that_nobody_serves_is_not_found(entry: httpx.Client) -> None:
    answer = ask(entry, {"model": "nobody", "prompt": "x"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "model_not_found"


def test_a_name_inside_a_text_is_no_model(entry: httpx.Client) -> None:
    text = json.dumps({"model": "other"})
    assert ask(entry, {"prompt": f"{text}, {text}", "model": "smollm2"}).text == "own"


def test_a_long_prompt_keeps_its_model(entry: httpx.Client) -> None:
    assert ask(entry, {"prompt": "x" * 20_000_000, "model": "other"}).text in ("large", "small")


def test_the_header_of_a_client_chooses_nothing(entry: httpx.Client) -> None:
    answer = entry.post("/v1/completions", json={"model": "smollm2"}, headers={"x-sglk-model": "other"})
    assert answer.text == "own"


def test_a_server_sees_the_name_and_the_port_that_it_is_asked_for(entry: httpx.Client) -> None:
    """By both a page's own requests are told from those of other sites."""
    port = entry.base_url.port
    assert entry.get("/health").headers["asked-host"] == f"127.0.0.1:{port}"
    named = entry.get("/health", headers={"host": f"chat.example.com:{port}"})
    assert named.headers["asked-host"] == f"chat.example.com:{port}"

    with socket.create_connection(("127.0.0.1", port or 80)) as nameless:
        nameless.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert nameless.recv(4096).startswith(b"HTTP/1.1 200 OK")
