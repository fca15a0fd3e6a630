from pathlib import Path

import pytest

from sglk.cli import main
from sglk.config.compose import compose
from sglk.errors import ConfigError


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    return file


def test_keys_come_from_files_or_the_environment(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_API_KEY", "from-environment")
    monkeypatch.setenv("SGLK_ADMIN_API_KEY", "admin-environment")
    server = compose("serve", [f"server.admin_api_key_file={key_file}"]).config.server
    assert (server.api_key, server.admin_api_key) == ("from-environment", "from-file")
    assert compose("serve", ["server.api_key=typed"]).config.server.api_key == "typed"
    assert compose("bench", ["bench.url=http://x"]).config.bench.api_key == "from-environment"


def test_a_key_is_shown_nowhere(
    key_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLK_ADMIN_API_KEY", "from-environment")
    for form in ([], ["--json"], ["--yaml"]):
        assert main(["show", f"server.api_key_file={key_file}", *form]) == 0
        text = capsys.readouterr().out
        assert text.count("***") == 2
        assert "from-" not in text


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"x" * 5000])
def test_what_holds_no_key_is_refused_without_being_shown(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"server\.api_key_file=.*it holds the key and nothing else"):
        compose("serve", [f"server.api_key_file={file}"])


def test_an_absent_file_an_empty_variable_and_two_keys_are_refused(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="is not a file"):
            compose("serve", [f"server.api_key_file={path}"])
    with pytest.raises(ConfigError, match=r"both server\.api_key and server\.api_key_file"):
        compose("serve", [f"server.api_key_file={key_file}", "server.api_key=typed"])
    monkeypatch.setenv("SGLK_API_KEY", " ")
    with pytest.raises(ConfigError, match=r"\$SGLK_API_KEY is empty"):
        compose("serve", [])
