import logging
import subprocess
import sys

import pytest

from sglk.config.schema import ModelConfig
from sglk.errors import ModelLoadError
from sglk.models.description import describe_model
from sglk.models.gguf_file import GgufFile
from sglk.testing.tiny import CHATML, write_json, write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf

NUMBERS = {
    "architecture": "LlamaForCausalLM",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}


def at(path, **numbers) -> ModelConfig:
    return ModelConfig(name="tiny", path=str(path), **numbers)


def test_both_kinds_of_file_describe_the_same_model(tmp_path):
    folder = describe_model(at(write_tiny_model(tmp_path / "folder", chat_template=CHATML)))
    gguf = describe_model(at(write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=CHATML)))
    assert folder.spec == gguf.spec
    assert folder.tokenizer.chat_template == gguf.tokenizer.chat_template == CHATML
    assert folder.weights == tmp_path / "folder"
    assert isinstance(gguf.weights, GgufFile)


def test_spec_and_tokenizer_share_every_end_token(tmp_path):
    write_tiny_model(tmp_path, eos_token_id=3)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [4, 5]})
    description = describe_model(at(tmp_path))
    assert description.spec.eos_token_ids == description.tokenizer.eos_token_ids == {3, 4, 5, 257}


def test_numbers_that_differ_from_the_files_are_named(tmp_path, caplog):
    write_tiny_model(tmp_path)
    with caplog.at_level(logging.WARNING):
        describe_model(at(tmp_path, num_hidden_layers=3, hidden_size=64))
    [record] = caplog.records
    assert "model.num_hidden_layers is 3" in record.getMessage()
    assert "says 2" in record.getMessage()


def test_a_tokenizer_larger_than_the_model_is_named(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        describe_model(at(write_tiny_model(tmp_path, vocab_size=258, eos_token_id=257)))
    assert "the tokenizer has 260 tokens, the model only 258" in caplog.text


def test_dummy_takes_the_numbers_where_there_are_no_files():
    description = describe_model(ModelConfig(name="tiny", hub_id="someone/tiny-of-theirs", **NUMBERS), "dummy")
    assert description.weights is None
    assert (description.spec.head_dim, description.spec.vocab_size) == (16, 320)
    assert description.tokenizer.encode("a") == [97]
    assert description.tokenizer.chat_template is not None
    assert description.spec.eos_token_ids == {257, 259}


def test_dummy_prefers_the_files_of_this_machine(tmp_path):
    write_tiny_model(tmp_path, chat_template="own")
    (tmp_path / "model.safetensors").unlink()
    description = describe_model(at(tmp_path), "dummy")
    assert description.weights is None
    assert description.tokenizer.chat_template == "own"
    (tmp_path / "tokenizer.json").unlink()
    assert describe_model(at(tmp_path), "dummy").tokenizer.chat_template == CHATML


def test_dummy_reads_the_shape_of_a_gguf_file(tmp_path):
    assert describe_model(at(write_tiny_gguf(tmp_path / "tiny.gguf")), "dummy").weights is None


@pytest.mark.parametrize("missing", ["architecture", "hidden_size", "vocab_size", "max_position_embeddings"])
def test_dummy_names_the_number_it_lacks(missing):
    numbers = {**NUMBERS, missing: None}
    with pytest.raises(ModelLoadError, match=f"model=tiny has no files here.*`{missing}` is missing"):
        describe_model(ModelConfig(name="tiny", **numbers), "dummy")


def test_dummy_does_not_forgive_a_wrong_path():
    with pytest.raises(ModelLoadError, match="there is no /nowhere"):
        describe_model(at("/nowhere", **NUMBERS), "dummy")


def test_describing_a_model_needs_no_torch(tmp_path):
    folder, file = write_tiny_model(tmp_path / "folder"), write_tiny_gguf(tmp_path / "tiny.gguf")
    script = (
        "import sys\n"
        "from sglk.config.schema import ModelConfig\n"
        "from sglk.models.chat import load_chat_template\n"
        "from sglk.models.description import describe_model\n"
        f"for path in ({str(folder)!r}, {str(file)!r}):\n"
        "    load_chat_template(describe_model(ModelConfig(name='tiny', path=path)).tokenizer)\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
