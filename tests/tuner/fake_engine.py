"""A serving process for tests: the native API on the standard library, scripted per setting.

`python fake_engine.py [runtime.KEY=VALUE ...]` reads the file that FAKE_ENGINE_SCRIPT names:

    {"events": FILE, "rules": [{"when": {"max_running_requests": 8}, "do": "refuse", "tokens": 10}]}

The first rule whose values are those in force applies. `do` is `serve` (default), `start_exit`, `exit` (ends at the
first measured request), `kill` (SIGKILL to itself), `hang` (never answers), `refuse` (503 to every request),
`refuse_half` (503 to every second), `refuse_setting` (400 to the change). `tokens` is how many it claims to generate
per request. A rule with `until` holds for that many requests to settings other than the default. Every start, change,
flush and request is one JSON line in the events file.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = json.loads(Path(os.environ["FAKE_ENGINE_SCRIPT"]).read_text())
DEFAULTS = {
    "chunked_prefill_size": 512,
    "max_running_requests": 16,
    "mem_fraction_static": 0.5,
    "schedule_policy": "fcfs",
}


def parse(text: str) -> Any:
    text = text.strip("'")
    try:
        return json.loads(text)
    except ValueError:
        return text


def note(event: str, **details: Any) -> None:
    with Path(SCRIPT["events"]).open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), **details}) + "\n")


class State:
    runtime: dict[str, Any] = {}
    cache: set[tuple[int, ...]] = set()
    lock = threading.Lock()
    served = 0

    @classmethod
    def rule(cls) -> dict[str, Any]:
        for rule in SCRIPT["rules"]:
            if cls.served <= rule.get("until", cls.served) and all(
                cls.runtime.get(key) == value for key, value in rule["when"].items()
            ):
                return rule
        return {}

    @classmethod
    def act(cls) -> str:
        return cls.rule().get("do", "serve")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": "fake"}]},
            "/model_info": {"vocab_size": 320, "max_model_len": 4096},
            "/server_info": {
                "engine": "native",
                "chip": "cpu",
                "backend": SCRIPT.get("backend", "cpu"),
                "model": "smollm2",
                "runtime": State.runtime,
                "kv_capacity_tokens": 4096,
                "peak_memory_bytes": 1000,
                "device": {"name": "fake device", "driver": "1.2"},
                "versions": {"fake": "1.0"},
                "dtype": "fp32",
            },
        }
        if self.path == "/metrics":
            self.reply(200, "# TYPE sglk_retractions counter\nsglk_retractions_total 0\n", "text/plain")
        elif self.path in answers:
            self.reply(200, json.dumps(answers[self.path]))
        else:
            self.reply(404, "{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/flush_cache":
            State.cache.clear()
            note("flush")
            self.reply(200, "{}")
        elif self.path.partition("?")[0] == "/admin/runtime":
            self.change(json.loads(body))
        elif self.path == "/generate":
            self.generate(json.loads(body))
        else:
            self.reply(404, "{}")

    def change(self, runtime: dict[str, Any]) -> None:
        before = dict(State.runtime)
        State.runtime.update(runtime)
        State.cache.clear()
        if State.act() == "refuse_setting":
            State.runtime = before
            self.reply(400, json.dumps({"error": {"message": "the KV pool does not fit"}}))
            return
        note("change", runtime=dict(State.runtime))
        self.reply(200, "{}")

    def generate(self, body: dict[str, Any]) -> None:
        ids = tuple(body["input_ids"])
        with State.lock:
            State.served += any(State.runtime[key] != value for key, value in DEFAULTS.items())
            cached = len(ids) - 1 if ids in State.cache else 0
            State.cache.add(ids)
            # Under the lock: requests that arrive together must not see each other's count.
            odd, act = State.served % 2, State.act()
            tokens = State.rule().get("tokens", body["sampling_params"]["max_new_tokens"])
        note("generate", runtime=dict(State.runtime), cached=cached)
        if act == "exit":
            print("RuntimeError: device out of memory", flush=True)
            os._exit(3)
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "hang":
            threading.Event().wait()
        if act == "refuse" or (act == "refuse_half" and odd):
            self.reply(503, json.dumps({"error": {"message": "overloaded"}}))
            return
        meta = {"prompt_tokens": len(ids), "completion_tokens": tokens, "cached_tokens": cached}
        meta["finish_reason"] = {"type": "length"}
        event = json.dumps({"text": "x" * 8, "meta_info": meta})
        self.reply(200, f"data: {event}\n\ndata: [DONE]\n\n", "text/event-stream")

    def reply(self, status: int, text: str, kind: str = "application/json") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True


def main() -> None:
    pairs = [word.partition("=") for word in sys.argv[1:] if word.startswith("runtime.")]
    State.runtime = DEFAULTS | {key.removeprefix("runtime."): parse(value) for key, _, value in pairs}
    note("start", runtime=dict(State.runtime))
    if State.act() == "start_exit":
        print("CapacityError: not enough memory", flush=True)
        sys.exit(2)
    server = Server(("127.0.0.1", 0), Handler)
    print(f'SGLK_READY {{"url": "http://127.0.0.1:{server.server_port}"}}', flush=True)
    server.serve_forever(poll_interval=0.05)


main()
