"""Models that are given as a folder, a file or a name of the hub."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.home import expanded
from sglk.config.quoting import quoted
from tests.config.user_files import refusal, write_profile


def test_a_model_may_be_a_path(folder: Path) -> None:
    profile = write_profile(folder, "cpu", "My_Model_1_")
    composed = compose("serve", ["model='/data/a=b/My Model (1)'"])
    model = composed.config.model
    assert (model.path, model.name, model.hub_id) == ("/data/a=b/My Model (1)", "My Model (1)", None)
    assert composed.profile_path == profile
    assert compose("serve", ["model=tiny.gguf"]).config.model.path == "tiny.gguf"
    assert compose("tune", ["model=/data/m"]).config.model.name == "m"


def test_a_model_may_be_a_hub_name_unless_it_exists_here(folder: Path) -> None:
    model = compose("serve", ["model=Qwen/Qwen2.5-7B-Instruct"]).config.model
    assert (model.hub_id, model.path, model.name) == ("Qwen/Qwen2.5-7B-Instruct", None, "Qwen2.5-7B-Instruct")
    (folder / "Qwen" / "Qwen2.5-7B-Instruct").mkdir(parents=True)
    model = compose("serve", ["model=Qwen/Qwen2.5-7B-Instruct"]).config.model
    assert (model.hub_id, model.path) == (None, "Qwen/Qwen2.5-7B-Instruct")
    assert "./Qwen" in refusal("serve", "model=Qwen")


@pytest.mark.parametrize("name", ["~tilde", "~root", "${model}", "a\\\\${b}"])
def test_a_folder_may_have_an_odd_name(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    model = compose("serve", [quoted("model", f"./{name}")]).config.model
    assert model.path is not None
    assert (expanded(model.path).resolve(), model.name) == ((folder / name).resolve(), name)


def test_only_a_leading_tilde_is_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert compose("serve", ["model='~/m'"]).config.model.path == str(folder / "m")
    assert compose("serve", ["model='~no.such.user/m'"]).config.model.name == "m"
    assert "is not a folder" in refusal("serve", config_dir=Path("~no.such.user"))


def test_a_path_may_hold_an_interpolation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_TEST_MODELS", "/data")
    model = compose("serve", ["model='${oc.env:SGLK_TEST_MODELS}/m'"]).config.model
    assert (model.path, model.name) == ("/data/m", "m")
