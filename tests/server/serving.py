"""A served engine for tests: real engine, scheduler and cache over a scripted runner."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from sglk.cluster.fleet import Fleet
from sglk.config.fleet import ReplicaConfig
from sglk.config.schema import (
    ChipConfig,
    GroupConfig,
    ModelConfig,
    RouterConfig,
    RuntimeConfig,
    ServeConfig,
    ServerConfig,
)
from sglk.engine.engine import Engine
from sglk.models.byte_level import BOS, CHATML, EOS, EOS_ID, SPECIAL_TOKENS, byte_tokenizer
from sglk.models.chat import load_chat_template
from sglk.models.tokenizer import Tokenizer
from sglk.server.access import OnEnd
from sglk.server.app import create_app
from sglk.server.deployment import Deployment
from sglk.server.http_server import KEEP_ALIVE_S, parsing
from sglk.testing.scripted import ScriptedRunner
from tests.waiting import wait_until

MODEL = "tiny"

ENDLESS = {"prompt": "x", "max_tokens": 900_000, "ignore_eos": True}
"""A completion for `patient_runner` that has to be aborted."""


def scripted_answers(text: str) -> Callable[[tuple[int, ...]], list[int]]:
    """Script a runner to answer every prompt with the bytes of `text`."""
    return lambda _: list(text.encode())


def answering(text: str, **settings: Any) -> ScriptedRunner:
    """Return a runner that ends every answer after `text`."""
    return ScriptedRunner(eos_token_ids=frozenset({EOS_ID}), script=scripted_answers(text), **settings)


def deploy(
    runner: ScriptedRunner | Mapping[str, ScriptedRunner],
    *,
    chat_template: str | None = CHATML,
    server: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
    weights: Mapping[str, float] | None = None,
    **runtime: Any,
) -> Deployment:
    """Return a deployment with running engines; `runtime`, `server` and `router` replace settings.

    `runner` may map names of device groups to a runner each; they have equal `weights` unless these are given.
    """
    runners = runner if isinstance(runner, Mapping) else {"left": runner}
    config = ServeConfig(
        chip=ChipConfig(name="cpu", title="cpu", vendor="any", backend="cpu", dtypes=["fp32"]),
        model=ModelConfig(name=MODEL, path="/models/tiny"),
        runtime=RuntimeConfig(**{"page_size": 1, **runtime}),
        server=ServerConfig(**(server or {})),
        router=RouterConfig(**(router or {})),
        groups=[GroupConfig(name, ["cpu:0"], weight=(weights or {}).get(name, 1.0)) for name in runners],
    )
    templates = {} if chat_template is None else {"default": chat_template}
    tokenizer = Tokenizer(byte_tokenizer(SPECIAL_TOKENS), bos_token=BOS, eos_token=EOS, chat_templates=templates)

    def launch(replica: ReplicaConfig) -> Engine:
        engine = Engine(runners[replica.group.name], tokenizer, config.runtime, name=replica.name)
        engine.start()
        return engine

    replicas = [ReplicaConfig(f"{group.name}/0", group, replace(config, groups=[group])) for group in config.groups]
    return Deployment(config, Fleet(replicas, config.router, launch), tokenizer, load_chat_template(tokenizer))


def patient_runner(**settings: Any) -> ScriptedRunner:
    """Return a runner whose context is so long that ENDLESS requests outlast every test."""
    return ScriptedRunner(**{"context_length": 1_000_000, "kv_tokens": 1_000_000, **settings})


@contextlib.contextmanager
def serving(
    runner: ScriptedRunner | Mapping[str, ScriptedRunner] | None = None, *, on_end: OnEnd | None = None, **settings: Any
) -> Iterator["Served"]:
    """Serve over a real socket until the block ends; `on_end` is told of every request's end."""
    runner = runner or ScriptedRunner(eos_token_ids=frozenset({EOS_ID}))
    with serving_deployment(deploy(runner, **settings), on_end) as served:
        yield served


@contextlib.contextmanager
def serving_deployment(deployment: Deployment, on_end: OnEnd | None = None) -> Iterator["Served"]:
    """Serve `deployment` over a real socket until the block ends, and shut it down."""
    deployment.fleet.start()
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(deployment, on_end)
    settings = {**parsing(), "timeout_keep_alive": KEEP_ALIVE_S}
    config = uvicorn.Config(app, **settings, log_config=None, lifespan="off", ws="none", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        wait_until(lambda: server.started)
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client, contextlib.ExitStack() as calls:
            yield Served(url, deployment, client, calls)
    finally:
        server.should_exit = True
        deployment.bridge.abort_all()
        thread.join(120)
        deployment.fleet.shutdown()
        listener.close()


class Served:
    """A running server and a client of it."""

    def __init__(self, url: str, deployment: Deployment, client: httpx.Client, calls: contextlib.ExitStack) -> None:
        self.url = url
        self.deployment = deployment
        self.client = client
        self._calls = calls

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """POST `body` as JSON."""
        return self.client.post(path, json=body, **more)

    def get(self, path: str) -> httpx.Response:
        """GET `path`."""
        return self.client.get(path)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """POST with `stream` and return the parsed events: all before [DONE], or all up to an error, which has none."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        failed = lines[-1].startswith('data: {"error":')
        assert failed or lines[-1] == "data: [DONE]"
        assert lines.count("data: [DONE]") == (not failed)
        return [json.loads(line.removeprefix("data: ")) for line in (lines if failed else lines[:-1])]

    def call(self, path: str, body: dict[str, Any], **headers: str) -> HTTPConnection:
        """Send a POST and return the connection, without waiting for an answer; it is closed with the server."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=120)
        self._calls.callback(connection.close)
        connection.request("POST", path, json.dumps(body), headers)
        return connection

    def ask(self, **headers: str) -> str:
        """Return the answer to a short completion."""
        response = self.post("/v1/completions", {"prompt": "x", "temperature": 0}, headers=headers)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def admin(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Give an order to `/admin` and return what is told of it."""
        response = self.client.request(method, f"/admin/{path}", json=body)
        assert response.status_code == 200, response.text
        told: dict[str, Any] = response.json()
        return told

    def samples(self) -> dict[str, float]:
        """Scrape `/metrics`: value by sample name, label values left out (there is one model and one group)."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        return {
            sample.name: sample.value for family in families for sample in family.samples if "le" not in sample.labels
        }

    def wait_idle(self, timeout_s: float = 120.0) -> None:
        """Wait until nothing runs, waits or holds KV."""
        stats = self.deployment.fleet.first.stats
        wait_until(
            lambda: stats().running_requests == stats().queued_requests == stats().kv_used_tokens == 0, timeout_s
        )


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Return the `error` object of a response, whose form is checked."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error
