"""What the tests of real engines share: a model, its greedy tokens by sglk, and servers that start once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sglk.bench.target import LaunchedServer
from sglk.engine.messages import SamplingParams
from sglk.llm import LLM
from sglk.testing.tiny import write_tiny_model
from tests.upstream.real.engines import NEW_TOKENS, Tokens, prompts, served


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of heads of 64, which is what vLLM's CPU attention takes."""
    return write_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny",
        head_dim=64,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
    )


@pytest.fixture(scope="session")
def native(tiny: Path) -> Tokens:
    params = SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    with LLM(str(tiny), overrides=["profiles=none"], dtype="fp32") as llm:
        return [list(answer.token_ids) for answer in llm.generate(prompts(), params)]


@pytest.fixture(scope="session", autouse=True)
def platform() -> Iterator[None]:
    """Let SGLang run on any CPU, without a compiler: to compile what it splits takes longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_PLATFORM", "sglk_cpu")
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        yield


@pytest.fixture(scope="session")
def sglang(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    """SGLang with sglk's attention and pages of one token."""
    with served("sglang", tiny, tmp_path_factory.mktemp("sglang")) as server:
        yield server


@pytest.fixture(scope="session")
def torch_native(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    """SGLang with an attention of its own."""
    folder = tmp_path_factory.mktemp("torch-native")
    with served("sglang", tiny, folder, "engine.extra_args.attention_backend=torch_native") as server:
        yield server
