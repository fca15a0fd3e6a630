"""SGLang 0.5.18 on a CPU by sglk's platform plugin: ready, right, drained, and nothing left of it."""

import signal
from pathlib import Path

import pytest

from sglk.bench.target import LaunchedServer
from tests.upstream.real.engines import (
    Tokens,
    at_once,
    cached_tokens,
    descendants,
    engine_url,
    one_by_one,
    prompts,
    served,
    stop_amid_answer,
)
from tests.upstream.real.load import CONCURRENCY, REQUESTS, kill_all, under_load
from tests.upstream.stand_ins import client

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]


def test_greedy_tokens_are_those_of_sglks_engine(sglang: LaunchedServer, native: Tokens) -> None:
    assert one_by_one(sglang.url, prompts()) == native


def test_requests_beside_each_other_and_cached_beginnings_change_no_token(
    sglang: LaunchedServer, native: Tokens
) -> None:
    assert at_once(sglang.url, prompts()) == native
    assert cached_tokens(sglang.url, prompts()[3]) >= 149
    assert sglang.flush_cache()
    assert cached_tokens(sglang.url, prompts()[3]) == 0
    assert at_once(sglang.url, prompts()) == native


def test_a_request_that_it_cannot_deal_with_does_not_speak_against_it(sglang: LaunchedServer) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    with client(sglang.url) as http:
        for _ in range(4):
            answer = http.post("/v1/messages", json=body)
            assert answer.status_code == 502
            assert "group0/0 answered 500: " in answer.text
        (group,) = http.get("/admin/groups").json()["groups"]
        assert (group["replicas"][0]["breaker"], group["replicas"][0]["ended"]["failed"]) == ("closed", 4)


def test_the_plugins_attention_is_torchs(sglang: LaunchedServer, torch_native: LaunchedServer) -> None:
    asked = [*prompts(7), *prompts(11)]
    assert at_once(sglang.url, asked) == one_by_one(torch_native.url, asked)


def test_pages_of_16_hold_the_same_and_a_drain_ends_all(tiny: Path, tmp_path: Path, native: Tokens) -> None:
    with served("sglang", tiny, tmp_path, "backend.upstream.sglang.page_size=null", "runtime.page_size=16") as server:
        assert at_once(server.url, prompts()) == native
        assert cached_tokens(server.url, prompts()[3]) == 144
        assert one_by_one(server.url, prompts()) == native
        said, left = stop_amid_answer(server, signal.SIGTERM)
    assert said.rstrip().endswith("data: [DONE]")
    assert left == []
    assert "--page-size 16" in (tmp_path / "serve.log").read_text()


def test_sglks_router_loses_no_request_when_a_worker_is_killed(
    sglang: LaunchedServer, torch_native: LaunchedServer, tmp_path: Path
) -> None:
    """Comes last: it takes `torch_native` away."""
    kept, killed = engine_url(sglang), engine_url(torch_native)
    groups = f"groups=[{{name: kept, url: '{kept}'}}, {{name: killed, url: '{killed}'}}]"
    given = ["chip=cpu", groups, "server.served_model_name=tiny", "profiles=none"]
    with LaunchedServer(given, log=tmp_path / "gateway.log", timeout_s=60) as gateway:
        info = torch_native.server_info()
        assert info is not None
        ended = under_load(gateway.url, lambda: kill_all(descendants(info["pid"])))
        torch_native.close()
        assert len(ended) == REQUESTS
        assert {each.status for each in ended} <= {200, 502, 503}
        # A stream that was open gets an error event; the others go to the worker that is left.
        assert sum(each.whole for each in ended) >= REQUESTS - CONCURRENCY
        assert all(each.whole or each.error for each in ended)
        assert {each.whole for each in under_load(gateway.url)} == {True}
