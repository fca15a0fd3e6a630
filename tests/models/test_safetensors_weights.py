import json

import pytest
import torch
from safetensors.numpy import load_file, save_file

from sglk.errors import ModelLoadError
from sglk.models.safetensors_weights import INDEX, SafetensorsWeights
from sglk.testing.tiny import tiny_config, tiny_weights, write_json, write_tiny_model


def contents(source):
    return {name: source.get(name) for name in source.names()}


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_the_weights_are_those_written_however_many_files_hold_them(tmp_path, shards):
    source = SafetensorsWeights(write_tiny_model(tmp_path, seed=3, shards=shards))
    written = tiny_weights(tiny_config(), seed=3)
    assert set(source.names()) == set(written)
    for name, tensor in contents(source).items():
        torch.testing.assert_close(tensor, torch.from_numpy(written[name]), rtol=0, atol=0)


def test_a_single_file_may_have_another_name(tmp_path):
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert "model.norm.weight" in set(SafetensorsWeights(tmp_path).names())


def test_a_missing_shard_is_named(tmp_path):
    write_tiny_model(tmp_path, shards=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.unlink()
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00002.safetensors is missing"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, 100_000])
def test_a_truncated_file_is_named(tmp_path, keep):
    file = write_tiny_model(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"model.safetensors is truncated or damaged"):
        SafetensorsWeights(tmp_path)


def test_a_tensor_that_only_the_index_has_is_named(tmp_path):
    write_tiny_model(tmp_path, shards=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    weights = load_file(shard)
    del weights["lm_head.weight"]
    save_file(weights, shard)
    with pytest.raises(ModelLoadError, match=r"names tensor 'lm_head\.weight' in model-00002"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}, {"a": "../outside.safetensors"}])
def test_a_damaged_index_is_named(tmp_path, weight_map):
    write_tiny_model(tmp_path, shards=2)
    write_json(tmp_path / INDEX, {"weight_map": weight_map})
    with pytest.raises(ModelLoadError, match="weight_map"):
        SafetensorsWeights(tmp_path)


def test_shards_without_an_index_are_not_guessed_at(tmp_path):
    write_tiny_model(tmp_path, shards=2)
    (tmp_path / INDEX).unlink()
    with pytest.raises(ModelLoadError, match=r"2 safetensors files but no model.safetensors.index.json"):
        SafetensorsWeights(tmp_path)


def test_the_index_decides_between_two_files_with_the_same_tensor(tmp_path):
    write_tiny_model(tmp_path, shards=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    first = load_file(tmp_path / "model-00001-of-00002.safetensors")["model.embed_tokens.weight"]
    save_file(load_file(shard) | {"model.embed_tokens.weight": 2 * first}, shard)
    assert json.loads((tmp_path / INDEX).read_text())["weight_map"]["model.embed_tokens.weight"].startswith(
        "model-00001"
    )
    assert torch.equal(SafetensorsWeights(tmp_path).get("model.embed_tokens.weight"), torch.from_numpy(first))


def test_an_unknown_name_is_an_error(tmp_path):
    with pytest.raises(ModelLoadError, match=r"'lm_heat.weight' is missing"):
        SafetensorsWeights(write_tiny_model(tmp_path)).get("lm_heat.weight")
