import logging

import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.errors import ModelLoadError
from sglk.models.loader import LoadedModel, load_model
from sglk.testing.tiny import write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf

PROMPT = list(b"The capital of France is ")


def load(path, **runtime) -> LoadedModel:
    return load_model(ModelConfig(name="tiny", path=str(path)), RuntimeConfig(**runtime), CpuBackend(num_threads=1))


def answer(loaded: LoadedModel, count: int = 10) -> list[int]:
    """Continue the prompt greedily through the runner."""
    runner = ModelRunner(loaded.model, loaded.model.context.backend, RuntimeConfig())
    runner.allocate_kv(8, 16)
    greedy, ids, start = SamplingParams(temperature=0.0), list(PROMPT), 0
    for step in range(count):
        row = BatchRow("0", ids[start:], start, range(8), greedy, 0, step, True)
        start = len(ids)
        ids += runner.run(Batch([row], num_prefills=1 if step == 0 else 0))
    return ids[len(PROMPT) :]


def answer_of_transformers(folder, count: int = 10) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return output[0, len(PROMPT) :].tolist()


def change_weights(folder, change):
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"])
def test_a_folder_answers_as_in_transformers(tmp_path, architecture):
    folder = write_tiny_model(tmp_path, architecture=architecture, eos_token_id=None, sliding_window=None)
    assert answer(load(folder)) == answer_of_transformers(folder)


def test_a_scaled_model_answers_as_in_transformers(tmp_path):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    folder = write_tiny_model(tmp_path, rope_scaling=scaling, eos_token_id=None)
    assert answer(load(folder)) == answer_of_transformers(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_saves_can_be_loaded(tmp_path, tied):
    write_tiny_model(tmp_path / "before", tie_word_embeddings=tied, eos_token_id=None, rope_theta=5000.0)
    folder = tmp_path / "after"
    transformers.AutoTokenizer.from_pretrained(tmp_path / "before").save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "before", dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert answer(load(folder)) == answer_of_transformers(tmp_path / "before")


def test_shards_and_gguf_answer_as_a_single_file(tmp_path):
    expected = answer(load(write_tiny_model(tmp_path / "one")))
    assert answer(load(write_tiny_model(tmp_path / "three", shards=3))) == expected
    assert answer(load(write_tiny_gguf(tmp_path / "tiny.gguf"))) == expected


def test_another_seed_is_another_model(tmp_path):
    assert answer(load(write_tiny_model(tmp_path / "a", seed=1))) != answer(
        load(write_tiny_model(tmp_path / "b", seed=2))
    )


def test_tied_and_without_a_head(tmp_path):
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True, eos_token_id=None)
    assert answer(load(folder)) == answer_of_transformers(folder)


def test_tied_with_another_head_follows_the_configuration(tmp_path, caplog):
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    expected = answer(load(folder))
    change_weights(folder, lambda w: w.update({"lm_head.weight": -w["model.embed_tokens.weight"]}))
    with caplog.at_level(logging.WARNING):
        assert answer(load(folder)) == expected
    assert "'lm_head.weight' differs from the embedding and is ignored" in caplog.text


def test_untied_without_a_head_is_refused(tmp_path):
    folder = change_weights(write_tiny_model(tmp_path), lambda w: w.pop("lm_head.weight"))
    with pytest.raises(ModelLoadError, match=r"1 tensor missing: 'lm_head\.weight'"):
        load(folder)


def test_an_extra_tensor_is_only_a_warning(tmp_path, caplog):
    folder = write_tiny_model(tmp_path)
    expected = answer(load(folder))
    change_weights(folder, lambda w: w.update({"model.layers.0.extra.weight": w["model.norm.weight"]}))
    with caplog.at_level(logging.WARNING):
        assert answer(load(folder)) == expected
    assert "'model.layers.0.extra.weight'" in caplog.text


def test_another_shape_is_refused(tmp_path):
    folder = change_weights(
        write_tiny_model(tmp_path), lambda w: w.update({"model.norm.weight": w["model.norm.weight"][:63]})
    )
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' has shape \[63\], expected \[64\]"):
        load(folder)


def test_a_missing_shard_no_weights_and_a_truncated_file_are_refused(tmp_path):
    sharded = write_tiny_model(tmp_path / "sharded", shards=2)
    (sharded / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-00001-of-00002\.safetensors is missing"):
        load(sharded)
    empty = write_tiny_model(tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors"):
        load(empty)
    cut = write_tiny_model(tmp_path / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is truncated"):
        load(cut.parent)


def test_biases_that_would_be_ignored_are_refused(tmp_path):
    folder = write_tiny_model(tmp_path, architecture="Qwen2ForCausalLM")
    bias = {f"model.layers.{i}.self_attn.o_proj.bias": "model.norm.weight" for i in range(2)}
    change_weights(folder, lambda w: w.update({name: w[source] for name, source in bias.items()}))
    with pytest.raises(ModelLoadError, match=r"o_proj\.bias"):
        load(folder)


def test_weights_are_converted_to_the_compute_dtype(tmp_path):
    loaded = load(write_tiny_model(tmp_path), dtype="bf16")
    assert {weight.tensor.dtype for weight in loaded.model.context.weights} == {torch.bfloat16}


def test_dummy_weights_follow_the_seed(tmp_path):
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").unlink()
    one, again, other = (answer(load(folder, load_format="dummy", random_seed=seed)) for seed in (1, 1, 2))
    assert one == again != other
