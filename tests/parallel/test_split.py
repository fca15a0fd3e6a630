"""A model split over ranks says what it says in one piece."""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends.base import MemoryInfo
from sglk.backends.cpu import CpuBackend
from sglk.backends.quantise import quantise_int4, quantise_int8
from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.backends.schemes import LinearScheme, Quantization
from sglk.backends.sim_clock import DeviceClock
from sglk.config.compose import compose
from sglk.config.schema import RuntimeConfig
from sglk.engine.loading import load_rank
from sglk.errors import ConfigError, ModelLoadError
from sglk.models.split import PartWeights, RankPart, Stored, gathers
from sglk.parallel.ranks import ALONE, RankGroup, Ranks
from sglk.testing.tiny import tiny_config, write_tiny_model
from sglk.testing.tiny_weights import tiny_weights
from tests.models.greedy import ArrayWeights, spec_of, tiny_runner
from tests.parallel.in_threads import continued, in_ranks, load_part

PROMPTS = [random.Random(5).choices(range(256), k=length) for length in (37, 1, 16)]
COUNT = 10


def heads(query: int, key_value: int, **overrides: Any) -> dict[str, Any]:
    return tiny_config(num_attention_heads=query, num_key_value_heads=key_value, **overrides)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (heads(4, 2), 2),
        (heads(4, 2), 4),
        (heads(4, 1), 2),
        (heads(4, 1, attention_bias=True, mlp_bias=True, tie_word_embeddings=True), 4),
        (heads(6, 3, hidden_size=96, intermediate_size=144), 3),
        (heads(6, 3, hidden_size=96, intermediate_size=144), 6),
        (tiny_config("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=9, max_window_layers=1), 2),
        (tiny_config("Qwen3ForCausalLM"), 2),
        (tiny_config("MixtralForCausalLM"), 4),
        (tiny_config("Qwen2MoeForCausalLM", num_hidden_layers=3, mlp_only_layers=[1]), 2),
        (tiny_config("Qwen3MoeForCausalLM"), 2),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value["architectures"][0].removesuffix("ForCausalLM"),
)
def test_ranks_continue_as_the_whole_model_does(config: dict[str, Any], size: int) -> None:
    expected = continued(tiny_runner(config), PROMPTS, COUNT, chunk=7)
    assert in_ranks(config, size, lambda part: continued(part, PROMPTS, COUNT, chunk=7)) == [expected] * size


@pytest.mark.parametrize(
    ("config", "size", "allowed"),
    [
        (
            heads(4, 2),
            3,
            "4 attention heads, 2 key-value heads, feed-forward width 128 of 'tiny' evenly; allowed: 1, 2, 4",
        ),
        (heads(4, 2), 8, "allowed: 1, 2, 4"),
        (heads(6, 3, hidden_size=96), 2, "6 attention heads, 3 key-value heads, feed-forward width 128"),
        (heads(6, 3, hidden_size=96), 3, "allowed: 1"),
        (tiny_config("Qwen2MoeForCausalLM", shared_expert_intermediate_size=49), 2, "feed-forward width 49"),
    ],
)
def test_what_cannot_be_split_evenly_is_refused_with_what_can(config: dict[str, Any], size: int, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RankPart(spec_of(config), RankGroup(0, size), "tiny")
    assert f"runtime.tp_size={size} does not split" in str(caught.value)
    assert allowed in str(caught.value)


def test_each_rank_holds_its_share_alone() -> None:
    config = heads(4, 2, hidden_size=96, head_dim=32)
    whole = tiny_runner(config)
    shared = sum(array.nbytes for name, array in tiny_weights(config).items() if "proj" not in name)
    parts = in_ranks(config, 2, lambda part: part.runner)
    assert [part.weights_bytes - shared for part in parts] == [(whole.weights_bytes - shared) // 2] * 2


def test_main_memory_is_shared_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "memory_info", lambda self: MemoryInfo(2**24, 2**23))
    config = heads(4, 2)
    runtime = RuntimeConfig(mem_fraction_static=1.0, max_running_requests=10_000)
    alone, (half, _) = tiny_runner(config), in_ranks(config, 2, lambda part: part.runner)
    budget = 2**24 // 2
    assert alone.kv_capacity_tokens(runtime) == (budget - alone.weights_bytes) // (2 * 2 * 2 * 16 * 4)
    assert half.kv_capacity_tokens(runtime) == (budget // 2 - half.weights_bytes) // (2 * 2 * 1 * 16 * 4)


def test_random_weights_are_those_of_the_whole_model(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    config = compose("serve", [f"model={folder}", "runtime.load_format=dummy", "runtime.tp_size=2"]).config

    def weights(ranks: Ranks) -> dict[str, torch.Tensor]:
        runner, _ = load_rank(config, ranks)
        return {
            weight.parts[0][0]: weight.tensor for weight in runner.model.context.weights if hasattr(weight, "tensor")
        }

    whole, first, second = weights(ALONE), weights(RankGroup(0, 2)), weights(RankGroup(1, 2))
    down, embedding = "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"
    assert torch.equal(torch.cat([first[down], second[down]]), whole[down])
    assert torch.equal(second[embedding], whole[embedding])


class OneMatrix:
    """A source of one packed matrix."""

    def __init__(self, matrix: QuantisedMatrix) -> None:
        self.matrix = matrix

    def __str__(self) -> str:
        return "folder"

    def names(self) -> Iterable[str]:
        return []

    def get(self, name: str) -> Stored:
        return self.matrix


def piece(matrix: QuantisedMatrix, name: str, rank: int) -> torch.Tensor:
    """Half of the matrix: of its outputs for an up projection, of its inputs for a down projection that is summed."""
    part = RankPart(spec_of(heads(4, 2)), RankGroup(rank, 2), "tiny")
    rows, columns = matrix.shape
    shape = (rows // 2, columns) if "up" in name else (rows, columns // 2)
    got = PartWeights(OneMatrix(matrix), part, {name: shape}).get(name)
    assert isinstance(got, QuantisedMatrix)
    assert got.shape == shape
    return full_precision(got)


@pytest.mark.parametrize(
    "matrix",
    [
        quantise_int8(torch.randn(64, 32), 32),
        quantise_int8(torch.randn(64, 32), 8),
        quantise_int4(torch.randn(64, 32), 16, True),
        quantise_int4(torch.randn(64, 32), 4, False),
    ],
    ids=["int8", "int8-groups", "int4", "int4-zeros"],
)
def test_packed_weights_are_cut_as_they_are(matrix: QuantisedMatrix) -> None:
    whole = full_precision(matrix)
    assert torch.equal(torch.cat([piece(matrix, "a.up_proj.weight", rank) for rank in range(2)]), whole)
    assert torch.equal(torch.cat([piece(matrix, "a.down_proj.weight", rank) for rank in range(2)], dim=1), whole)


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (quantise_int8(torch.randn(64, 48), 16), "groups of 16 inputs"),
        (replace(quantise_int8(torch.randn(64, 32), 8), order_E=torch.randperm(32)), "an order of columns of its own"),
    ],
    ids=["groups", "order"],
)
def test_packed_weights_that_a_cut_would_spoil_are_refused(matrix: QuantisedMatrix, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"folder: 'a\.down_proj\.weight' is quantised in {reason}, which"):
        piece(matrix, "a.down_proj.weight", 0)


def test_a_tensor_of_another_shape_is_refused_with_that_of_the_whole() -> None:
    config = heads(4, 2)
    weights = tiny_weights(config)
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name][:, :64]
    with pytest.raises(ModelLoadError, match=r"has shape \[64, 64\], expected \[64, 128\]"):
        load_part(config, ArrayWeights(weights), RankGroup(0, 2))


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_bias_of_a_block_is_added_once(deterministic: bool) -> None:
    config = heads(4, 2, attention_bias=True, mlp_bias=True)
    whole = ArrayWeights(tiny_weights(config))
    ranks = [RankGroup(rank, 2, deterministic=deterministic) for rank in range(2)]
    parts = [load_part(config, whole, each).runner.model.context.weights for each in ranks]
    first, second = ({weight.parts[0][0]: weight.tensor for weight in part} for part in parts)
    for block in ("self_attn.o_proj", "mlp.down_proj"):
        name = f"model.layers.0.{block}.bias"
        joined = torch.cat((first[name], second[name])) if deterministic else first[name] + second[name]
        assert torch.equal(joined, whole.get(name))


def test_a_model_in_one_piece_is_left_alone() -> None:
    spec = spec_of(heads(4, 2))
    part = RankPart(spec, ALONE, "tiny")
    assert part.spec == spec
    assert part.cut("model.layers.0.self_attn.q_proj.weight", (64, 64)) is None
    tensor = torch.ones(2)
    assert ALONE.sum(tensor) is tensor


class Chip(CpuBackend):
    """The cpu, with capabilities of another chip."""

    def __init__(self, **capabilities: bool) -> None:
        super().__init__(num_threads=1)
        self.capabilities = replace(CpuBackend.capabilities, **{"exact_ranks": False, **capabilities})


@pytest.mark.parametrize(
    ("scheme", "deterministic", "capabilities", "expected"),
    [
        (None, None, {"exact_ranks": True}, True),
        (None, None, {}, False),
        (None, True, {}, True),
        (None, False, {"exact_ranks": True}, False),
        (LinearScheme("w8a16"), None, {}, False),
        # A token's activations share a scale, of which no rank has all.
        (LinearScheme("w8a8"), None, {}, True),
        (LinearScheme("w8a8", 32), None, {}, False),
        (LinearScheme("fp8"), None, {}, False),
        (LinearScheme("fp8"), None, {"fp8_activations": True}, True),
        # 32 inputs of `o_proj` a rank.
        (LinearScheme("w4a16", 32), None, {}, False),
        (LinearScheme("w4a16", 48), None, {}, True),
        (LinearScheme("w4a16", 32, order="its own"), None, {}, True),
    ],
)
def test_ranks_gather_where_bits_or_scales_ask_for_it(
    scheme: LinearScheme | None, deterministic: bool | None, capabilities: dict[str, bool], expected: bool
) -> None:
    ranks = RankGroup(0, 2, deterministic=deterministic)
    spec = replace(spec_of(heads(4, 2)), quantization=Quantization(default=scheme))
    backend = Chip(**capabilities)
    assert gathers(RankPart(spec, ranks, "tiny").spec, ranks, backend) is expected
    assert not gathers(spec, ALONE, backend)
    backend.clock = DeviceClock(1.0)
    assert not gathers(RankPart(spec, ranks, "tiny").spec, ranks, backend)
