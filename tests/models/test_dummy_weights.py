import pytest
import torch

from sglk.errors import ModelLoadError
from sglk.models.dummy_weights import DummyWeights

SHAPES = {"a.weight": (300, 400), "b.weight": (300, 400), "a.bias": (50,), "input_layernorm.weight": (64,)}


def test_the_seed_and_the_name_fix_a_tensor():
    one, again, other = DummyWeights(SHAPES, 1), DummyWeights(SHAPES, 1), DummyWeights(SHAPES, 2)
    assert torch.equal(one.get("a.weight"), again.get("a.weight"))
    assert torch.equal(one.get("a.weight"), one.get("a.weight"))
    assert not torch.equal(one.get("a.weight"), one.get("b.weight"))
    assert not torch.equal(one.get("a.weight"), other.get("a.weight"))


def test_activations_keep_their_size():
    source = DummyWeights(SHAPES, 0)
    assert list(source.names()) == list(SHAPES)
    assert source.get("a.weight").std().item() == pytest.approx(400**-0.5, rel=0.02)
    assert torch.equal(source.get("input_layernorm.weight"), torch.ones(64))


def test_an_unknown_name_is_an_error():
    with pytest.raises(ModelLoadError, match=r"'c\.weight' is missing"):
        DummyWeights(SHAPES, 0).get("c.weight")
