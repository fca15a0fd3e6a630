import logging
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.config.catalogue import models
from sglk.config.model_size import num_parameters
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.errors import ModelLoadError
from sglk.models.description import describe_model
from sglk.models.dummy_weights import DummyWeights
from sglk.models.gguf_file import GgufFile
from sglk.models.registry import ARCHITECTURES, model_class
from sglk.models.spec import MoeSpec
from sglk.testing.tiny import CHATML, write_json, write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf
from tests.models.greedy import Stepper

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


@pytest.mark.parametrize(
    "model", [model for model in models().entries if model.architecture in ARCHITECTURES], ids=lambda model: model.name
)
def test_every_shipped_model_runs_scaled_down_without_files(model):
    small = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": 128,
    }
    if model.num_experts:
        small |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    described = describe_model(replace(model, package=None, hub_id=None, **small), "dummy")
    spec = described.spec
    assert (spec.hidden_size, spec.sliding_windows, spec.moe is not None) == (64, (), bool(model.num_experts))
    network = model_class(spec.architecture)(spec, CpuBackend(num_threads=1), torch.float32)
    # Planning counts the same weights before it has seen a file.
    counted = num_parameters(replace(model, **small))
    assert network.weights_bytes == 4 * counted
    network.load_weights(DummyWeights(network.weight_shapes(), 0))
    stepper = Stepper(ModelRunner(network, CpuBackend(num_threads=1), RuntimeConfig()), 16, 4)
    stepper.prefill(stepper.add([1, 2, 3]), 16)
    assert len(stepper.answer(0)) == 1


def test_numbers_of_experts_are_taken_and_compared(tmp_path, caplog):
    numbers = {
        **NUMBERS,
        "architecture": "Qwen2MoeForCausalLM",
        "num_hidden_layers": 3,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_shared_experts": 2,
        "first_dense_layers": 1,
    }
    moe = describe_model(ModelConfig(name="tiny", **numbers), "dummy").spec.moe
    assert moe == MoeSpec(6, 2, 32, False, shared_expert_intermediate_size=64, dense_layers=frozenset({0}))
    scaled = describe_model(ModelConfig(name="tiny", **numbers, norm_topk_prob=True), "dummy").spec.moe
    assert scaled == replace(moe, norm_topk_prob=True)
    write_tiny_model(tmp_path, architecture="Qwen2MoeForCausalLM")
    with caplog.at_level(logging.WARNING):
        describe_model(at(tmp_path, num_experts=60))
    assert "model.num_experts is 60" in caplog.text


@pytest.mark.parametrize(("model", "scaled"), [("qwen3_30b_a3b", True), ("mixtral8x7b", True)])
def test_a_shipped_model_of_experts_routes_from_its_numbers_as_from_its_files(model, scaled):
    config = next(entry for entry in models().entries if entry.name == model)
    assert describe_model(replace(config, hub_id=None), "dummy").spec.moe.norm_topk_prob == scaled


def test_an_architecture_that_nobody_builds_is_refused_before_the_hub_is_asked(monkeypatch):
    def snapshot_download(*_, **__):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    model = ModelConfig(name="other", hub_id="someone/other", architecture="OtherForCausalLM")
    for load_format in ("auto", "safetensors", "dummy"):
        with pytest.raises(ModelLoadError, match=r"^model 'other': architecture 'OtherForCausalLM' is not supported"):
            describe_model(model, load_format)


def test_a_folder_of_the_user_s_decides_its_architecture_itself(tmp_path):
    described = describe_model(at(write_tiny_model(tmp_path), architecture="OtherForCausalLM"))
    assert described.spec.architecture == "LlamaForCausalLM"
