"""What is wrong with a deployment's own files is told before the weights are read."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.engine.engine import Engine
from sglk.errors import ConfigError
from sglk.server.serve import load_deployment
from sglk.testing.tiny import write_tiny_model


@pytest.mark.parametrize(("text", "complaint"), [(None, "No such file"), ("{% for %}", "syntax error in line 1")])
def test_a_wrong_chat_template_is_told_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, complaint: str
) -> None:
    monkeypatch.setattr(Engine, "builders", lambda _: pytest.fail("the model was looked at"))
    template = tmp_path / "mine.jinja"
    if text is not None:
        template.write_text(text)
    words = [f"model={write_tiny_model(tmp_path / 'model')}", f"server.chat_template={template}", "profiles=none"]
    with pytest.raises(ConfigError, match=f"mine.jinja.*{complaint}"):
        load_deployment(compose("serve", words).config)


def test_a_first_prompt_was_never_sent_before(tmp_path: Path) -> None:
    """Whatever the engine was tried with before the port opened."""
    words = [f"model={write_tiny_model(tmp_path)}", "profiles=none", "runtime.page_size=1", "runtime.num_threads=1"]
    deployment = load_deployment(compose("serve", words).config)
    try:
        stats = deployment.fleet.first.stats()
    finally:
        deployment.fleet.shutdown()
    assert stats.generated_tokens > 0
    assert stats.kv_cached_tokens == 0
