"""vLLM 0.32.0 on a CPU: ready, right, drained, and nothing left of it."""

import signal
from pathlib import Path

import pytest

from tests.upstream.real.engines import OWN, Tokens, at_once, one_by_one, prompts, served, stop_amid_answer

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]


def test_greedy_tokens_are_those_of_sglks_engine_and_a_drain_ends_all(
    tiny: Path, tmp_path: Path, native: Tokens
) -> None:
    with served("vllm", tiny, tmp_path, *OWN["vllm"]) as server:
        assert one_by_one(server.url, prompts()) == native
        assert at_once(server.url, prompts()) == native
        said, left = stop_amid_answer(server, signal.SIGTERM)
    assert said.rstrip().endswith("data: [DONE]")
    assert left == []
