"""A mock server with a prefix cache, as far as a benchmark can see one."""

import json
from typing import Any

from tests.bench.mock_server import Call, MockServer, Reply
from tests.bench.running import MODELS, NATIVE
from tests.bench.streams import FRAMINGS


class CachedServer(MockServer):
    """Answers every interface at once with as many tokens as asked for; `flushes` says what `/flush_cache` does.

    Prompts are measured in characters, or ids; the cache knows every prompt since the last flush.
    """

    def __init__(self, *, flushes: bool | None = True, native: bool = True) -> None:
        super().__init__(self._complete, dict(NATIVE if native else MODELS))
        self._flushes = flushes
        self._seen: list[Any] = []

    async def _reply(self, call: Call, reply: Reply) -> None:
        if call.path == "/flush_cache" and self._flushes is not None:
            if self._flushes:
                self._seen.clear()
            await reply.json({})
        else:
            await super()._reply(call, reply)

    async def _complete(self, call: Call, reply: Reply) -> None:
        prompt = call.body.get("input_ids") or call.body.get("prompt") or call.body.get("text") or _chat(call.body)
        cached = max((_common(prompt, seen) for seen in self._seen), default=0)
        count = call.body.get("max_tokens") or call.body["sampling_params"]["max_new_tokens"]
        self._seen.append(prompt if isinstance(prompt, list) else prompt + "a" * count)
        await reply.stream(FRAMINGS["one event a read"](_events(call.path, len(prompt), cached, count)))


def _chat(body: dict[str, Any]) -> str:
    return "".join(message["content"] for message in body["messages"])


def _common(first: Any, second: Any) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


def _events(path: str, prompt: int, cached: int, count: int) -> list[str]:
    out: list[str] = []
    for number in range(1, count + 1):
        last = number == count
        finish = "length" if last else None
        if path == "/generate":
            meta = {
                "prompt_tokens": prompt,
                "completion_tokens": number,
                "cached_tokens": cached,
                "finish_reason": {"type": finish} if last else None,
            }
            out.append(json.dumps({"text": "a" * number, "meta_info": meta}))
            continue
        content = {"delta": {"content": "a"}} if path.endswith("chat/completions") else {"text": "a"}
        out.append(json.dumps({"choices": [{"index": 0, "finish_reason": finish, **content}]}))
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return out + ([] if path == "/generate" else [json.dumps({"choices": [], "usage": usage})]) + ["[DONE]"]
