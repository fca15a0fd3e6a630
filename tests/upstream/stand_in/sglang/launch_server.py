"""Stands in for SGLang: the same command, routes and processes, and an answer of a few words; prompts say what to do.

A prompt that begins with `refuse`, `unable`, `fail`, `die`, `cut`, `stall` or `slow` makes it do so;
$STAND_IN_START=`exit` or `hang` makes it fail at its start. It starts a worker that leaves its process group, as
engines' workers may.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import uvicorn

WORDS = ["The", " capital", " is", " Paris", "."]
SEEN: dict[str, Any] = {"aborted": 0, "requests": 0, "headers": {}}


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 3}}


class App:
    def __init__(self, model: str) -> None:
        self.model = model

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        name = scope["path"].strip("/").replace("/", "_").replace("v1_chat_completions", "v1_completions")
        route = getattr(self, name, None)
        if route is None:
            await answer(send, 404, {"error": {"message": "no such route"}})
            return
        await route(json.loads(body or b"{}"), scope, receive, send)

    async def health(self, body: Any, scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, {})

    async def seen(self, body: Any, scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, SEEN)

    async def metrics(self, body: Any, scope: Any, receive: Any, send: Any) -> None:
        text = 'sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n'
        text += 'sglang:max_total_num_tokens{model_name="m"} 4096.0\nsglang:prompt_tokens_total{model_name="m"} 70.0\n'
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": text.encode()})

    async def flush_cache(self, body: Any, scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, "flushed")

    async def v1_models(self, body: Any, scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, {"object": "list", "data": [{"id": self.model}]})

    async def v1_completions(self, body: Any, scope: Any, receive: Any, send: Any) -> None:
        SEEN["requests"] += 1
        SEEN["headers"] = {name.decode(): value.decode() for name, value in scope["headers"]}
        order = str(body.get("prompt") or body["messages"][-1]["content"]).partition(" ")[0]
        if order == "refuse":
            await answer(send, 400, {"error": {"message": "too long", "type": "x", "param": None, "code": 1}})
        elif order == "unable":
            await answer(send, 501, {"error": {"message": "nothing here does that"}})
        elif order == "fail" or SEEN["requests"] > int(os.environ.get("STAND_IN_FAILS_AFTER", "1000000")):
            await answer(send, 500, {"error": {"message": "out of memory"}})
        elif body.get("stream"):
            await self.stream(order, body, receive, send)
        else:
            choices = [{"index": 0, "text": "".join(WORDS)}]
            await answer(send, 200, {"id": "a", "choices": choices, "usage": usage(5)})

    async def stream(self, order: str, body: Any, receive: Any, send: Any) -> None:
        leaves = asyncio.ensure_future(receive())
        count = int(body["max_tokens"]) if body.get("ignore_eos") else 1000 if order == "slow" else len(WORDS)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        try:
            async for chunk in self.chunks(order, count, leaves):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"" if order == "cut" else b"data: [DONE]\n\n"})
        except ConnectionAbortedError:
            SEEN["aborted"] += 1

    async def chunks(self, order: str, count: int, leaves: Any) -> AsyncIterator[bytes]:
        for number, word in enumerate(islice(cycle(WORDS), count)):
            if order == "die" and number == 3:
                os._exit(7)
            if order == "stall" and number == 3:
                await asyncio.wait([leaves], timeout=60)
            if order == "slow":
                await asyncio.wait([leaves], timeout=0.02)
            if leaves.done():
                raise ConnectionAbortedError
            yield event({"id": "a", "choices": [{"index": 0, "text": word}]})
        yield event({"id": "a", "choices": [], "usage": usage(count)})


async def answer(send: Any, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default="m")
    parser.add_argument("--model-path")
    known, _ = parser.parse_known_args()
    print(f"loading {known.model_path}", flush=True)
    start = os.environ.get("STAND_IN_START")
    if start == "exit":
        sys.exit("torch.OutOfMemoryError: 3 GiB are not there")
    if start == "hang":
        time.sleep(3600)
    if (pids := os.environ.get("STAND_IN_PIDS")) is not None:
        worker = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        with Path(pids).open("a") as file:
            print(os.getpid(), worker.pid, known.port, file=file)
    print("ConnectionRefusedError: as engines say while they start, and go on", flush=True)
    uvicorn.run(App(known.served_model_name), host=known.host, port=known.port, log_level="warning")


if __name__ == "__main__":
    main()
