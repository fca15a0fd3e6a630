"""Token ids that are refused before they reach an engine."""

from pathlib import Path
from typing import Any

import pytest

from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.errors import RequestError
from sglk.server.gateway import load_gateway
from sglk.server.token_ids import require_known, vocabulary_of
from sglk.testing.scripted import ScriptedRunner
from sglk.testing.tiny import write_tiny_model
from tests.cluster.fleet import engine_of


@pytest.mark.parametrize(
    "fields",
    [{"prompt": [1, 320]}, {"prompt": [[1], [-1]]}, {"input_ids": [99999999]}, {"input_ids": [[5], [320]]}],
)
def test_an_id_outside_the_vocabulary_is_refused_by_its_field(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"is outside the vocabulary; use 0 to 319") as refused:
        require_known(fields, 320)
    assert refused.value.param == next(iter(fields))


@pytest.mark.parametrize("prompt", ["hi", ["a", "b"], [0, 319], [[0], [319]], [], [[]], None, {"a": 1}, [None, 1.5]])
def test_what_else_a_prompt_may_be_is_for_the_engine_to_say(prompt: Any) -> None:
    require_known({"prompt": prompt, "input_ids": prompt}, 320)


def test_the_vocabulary_is_that_of_the_files_or_else_of_the_models_numbers(tmp_path: Path) -> None:
    def size(*words: str) -> int | None:
        return vocabulary_of([compose("serve", [*words, "profiles=none"]).config.model])

    tiny = write_tiny_model(tmp_path / "tiny")
    assert size(f"model={tiny}") == 320
    assert size(f"model.path={tiny}") == 320
    assert size("model=qwen7b") == 152064
    assert size("model=qwen7b", "model.hub_id=org/other") is None
    for weights in tiny.glob("*.safetensors"):
        weights.unlink()
    assert size(f"model={tiny}") == 320
    (tiny / "config.json").write_text('{"architectures": ["OfTomorrow"]}')
    assert size(f"model={tiny}") is None


def test_the_vocabulary_of_a_model_from_the_hub_is_that_of_its_files_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(hub_id: str, *, local_files_only: bool, **_: Any) -> str:
        assert local_files_only
        return str(write_tiny_model(tmp_path / hub_id))

    monkeypatch.setattr("huggingface_hub.snapshot_download", here)
    for words in (["model=org/name"], ["model=qwen7b", "model.hub_id=org/other"]):
        assert vocabulary_of([compose("serve", [*words, "profiles=none"]).config.model]) == 320


@pytest.mark.parametrize("error", [PermissionError("no"), KeyboardInterrupt()])
def test_no_engine_is_left_where_the_look_for_the_vocabulary_fails(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise error

    composed = compose("serve", ["groups=[{name: a, url: 'http://127.0.0.1:9'}]", "profiles=none"])
    engine = engine_of(ScriptedRunner())
    monkeypatch.setattr("sglk.server.gateway.launch_all", lambda _: {"a/0": engine})
    monkeypatch.setattr("sglk.server.gateway.vocabulary_of", fail)
    with pytest.raises(type(error)):
        load_gateway(composed.config, None, replica_configs(composed))
    assert not engine.is_alive
