import gguf
import numpy as np
import pytest
import torch

from sglk.errors import ModelLoadError
from sglk.models.experts import ExpertNames
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_rope import llama3_divisors
from sglk.models.gguf_spec import read_gguf_spec
from sglk.models.gguf_weights import GgufWeights, huggingface_name
from sglk.models.hf_config import read_spec
from sglk.models.safetensors_weights import SafetensorsWeights
from sglk.testing.tiny import tiny_config, write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf
from tests.models.greedy import spec_of

ARCHITECTURES = [
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
]

# Greatest step between two stored values, as a share of the largest value of a block, times one half.
HALF_STEP = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 254, "Q4_1": 1 / 14, "Q4_0": 1 / 8, "Q5_1": 1 / 30}


def open_gguf(file):
    gguf_file = GgufFile(file)
    return GgufWeights(gguf_file, read_gguf_spec(gguf_file))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("overrides", [{}, {"head_dim": 32, "tie_word_embeddings": True}, {"num_key_value_heads": 4}])
def test_spec_and_weights_equal_those_of_the_folder(tmp_path, architecture, overrides):
    folder = write_tiny_model(tmp_path / "folder", architecture=architecture, **overrides)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", architecture=architecture, **overrides)

    ours, reference = open_gguf(file), SafetensorsWeights(folder)

    assert read_gguf_spec(GgufFile(file)) == read_spec(folder)
    assert set(ours.names()) == set(reference.names())
    for name in reference.names():
        torch.testing.assert_close(ours.get(name), reference.get(name), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("quantization", "family"), [*((type_, "Llama") for type_ in HALF_STEP), ("Q8_0", "Qwen3Moe"), ("Q4_1", "Mixtral")]
)
def test_quantised_weights_are_within_half_a_step(tmp_path, quantization, family):
    architecture = f"{family}ForCausalLM"
    folder = write_tiny_model(tmp_path / "folder", architecture=architecture)
    ours = open_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", quantization=quantization, architecture=architecture))
    reference = SafetensorsWeights(folder)
    for name in reference.names():
        expected, stored = reference.get(name), ours.get(name)
        assert stored.dtype == torch.float32
        blocks = expected.reshape(-1, 32)
        # A block with an offset (Q4_1) spans from its least to its greatest value, at most twice the largest one.
        scale = 2 * blocks.abs().amax(dim=1, keepdim=True) if quantization.endswith("_1") else blocks.abs().amax()
        error = (stored.reshape(-1, 32) - blocks).abs()
        assert (error <= HALF_STEP[quantization] * scale * 1.02 + 1e-7).all(), name


@pytest.mark.parametrize("type_", [gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K])
def test_k_quants_are_read(tmp_path, type_):
    """The library cannot write these, so a matrix of random blocks stands in; NaN scales are avoided."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[type_]
    raw = np.random.default_rng(0).integers(0, 60, (8, 2 * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "qwen2")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "k.gguf")

    weight = GgufWeights(file, spec_of(tiny_config("Qwen2ForCausalLM"))).get("model.layers.0.mlp.up_proj.weight")

    assert weight.shape == (8, 2 * block)
    assert torch.isfinite(weight).all()
    assert weight.unique().numel() > 100


def test_rows_that_are_no_heads_are_left_to_the_check_of_shapes(tmp_path):
    file = write_metadata(tmp_path / "m.gguf", tensors=[("blk.0.attn_q.weight", np.zeros((66, 64), np.float32))])
    weights = GgufWeights(file, read_gguf_spec(file))
    assert weights.get("model.layers.0.self_attn.q_proj.weight").shape == (66, 64)


def test_what_cannot_be_dequantised_is_named(tmp_path):
    file = write_metadata(tmp_path / "m.gguf", tensors=[("blk.0.attn_q.weight", np.zeros((64, 64), np.int8))])
    with pytest.raises(ModelLoadError, match=r"'blk.0.attn_q.weight' has type I8, .*; convert the model to F16"):
        GgufWeights(file, read_gguf_spec(file)).get("model.layers.0.self_attn.q_proj.weight")


def test_a_tensor_can_be_written_to(tmp_path):
    open_gguf(write_tiny_gguf(tmp_path / "tiny.gguf")).get("model.norm.weight").add_(1)


def test_unknown_tensors_keep_their_names():
    assert huggingface_name("blk.12.attn_q.bias", ExpertNames()) == "model.layers.12.self_attn.q_proj.bias"
    assert huggingface_name("blk.0.ssm_a.weight", ExpertNames()) == "blk.0.ssm_a.weight"
    assert huggingface_name("output_norm.weight", ExpertNames()) == "model.norm.weight"


def test_an_unknown_name_is_an_error(tmp_path):
    with pytest.raises(ModelLoadError, match=r"'lm_heat.weight' is missing"):
        open_gguf(write_tiny_gguf(tmp_path / "tiny.gguf")).get("lm_heat.weight")


def write_metadata(file, arch="llama", tensors=(), **values):
    """Write a GGUF file with an embedding and the given metadata in place of the usual."""
    base = {"block_count": 2, "context_length": 256, "embedding_length": 64, "feed_forward_length": 128}
    base |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    writer = gguf.GGUFWriter(file, arch)
    for key, value in (base | values).items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{arch}.{key}" if key in base or not key.startswith("split") else key, value)
    writer.add_tensor("token_embd.weight", np.zeros((320, 64), np.float32))
    for name, tensor in tensors:
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(file)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arch": "mamba"}, "`general.architecture` must be one of llama, qwen2, .*, not 'mamba'"),
        ({"block_count": None}, "`llama.block_count` is missing"),
        ({"block_count": "30"}, "`llama.block_count` must be a positive integer, not '30'"),
        ({"attention.head_count_kv": 3}, "`llama.attention.head_count_kv` must be a divisor of 4"),
        ({"rope.dimension_count": 8}, "`llama.rope.dimension_count` must be the head dimension 16"),
        ({"expert_count": 8}, "`llama.expert_used_count` is missing"),
        ({"expert_count": 8, "expert_used_count": 9}, "must be at most `llama.expert_count` \\(8\\), not 9"),
        ({"expert_count": 8, "expert_used_count": 2}, "tensor 'blk.0.ffn_gate_exps.weight' is missing; convert"),
        ({"split.count": 3}, "llama-gguf-split --merge"),
        ({"rope.scaling.type": "foo"}, "rope_scaling: `rope_type` must be one of"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.scaling.attn_factor": 0.5}, "1 for linear"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.yarn_ext_factor": 0.5}, "must be 1 "),
        ({"rope.scaling.type": "yarn"}, "rope_scaling: `factor` is missing"),
    ],
)
def test_wrong_metadata_is_named(tmp_path, values, message):
    with pytest.raises(ModelLoadError, match=message):
        read_gguf_spec(write_metadata(tmp_path / "m.gguf", **values))


def test_scaling_is_read_from_the_metadata(tmp_path):
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 256}
    spec = read_gguf_spec(write_metadata(tmp_path / "m.gguf", **scaling))
    assert spec.rope_scaling == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert spec.max_position_embeddings == 1024


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_kind_is_linear(tmp_path, key):
    spec = read_gguf_spec(write_metadata(tmp_path / "m.gguf", **{key: 2.0}))
    assert spec.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert read_gguf_spec(write_metadata(tmp_path / "one.gguf", **{key: 1.0})).rope_scaling is None


def test_the_fine_settings_of_yarn_are_read(tmp_path):
    fine = {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "attn_factor": 0.5, "yarn_log_multiplier": 0.0}
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 64, **fine}
    spec = read_gguf_spec(write_metadata(tmp_path / "m.gguf", **{f"rope.scaling.{k}": v for k, v in scaling.items()}))
    assert (spec.rope_scaling["beta_fast"], spec.rope_scaling["beta_slow"]) == (16.0, 2.0)
    assert spec.rope_scaling["attention_factor"] == pytest.approx(0.5 * 1.138629436)
    assert spec.max_position_embeddings == 256


@pytest.mark.parametrize(
    ("name", "tensor", "values"),
    [
        ("rope_factors_long.weight", np.ones(8, np.float32), {}),
        ("rope_freqs.weight", np.ones(8, np.float32), {"rope.scaling.factor": 2.0}),
        ("rope_freqs.weight", np.ones(8, np.float16), {}),
        ("rope_freqs.weight", np.full(8, np.nan, np.float32), {}),
        ("rope_freqs.weight", np.full(8, np.inf, np.float32), {}),
        ("rope_freqs.weight", np.full(8, -1, np.float32), {}),
    ],
)
def test_rotary_factors_are_never_left_out(tmp_path, name, tensor, values):
    with pytest.raises(ModelLoadError, match=f"tensor '{name}'"):
        read_gguf_spec(write_metadata(tmp_path / "m.gguf", tensors=[(name, tensor)], **values))


def test_experts_of_another_shape_are_named(tmp_path):
    experts = {"expert_count": 8, "expert_used_count": 2}
    tensor = ("blk.0.ffn_gate_exps.weight", np.zeros(32, np.float32))
    with pytest.raises(ModelLoadError, match=r"'blk.0.ffn_gate_exps.weight' has shape \[32\], expected 8 experts"):
        read_gguf_spec(write_metadata(tmp_path / "m.gguf", tensors=[tensor], **experts))


def test_llama3_scaling_is_recognised_by_its_factors(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    factors = llama3_divisors(scaling, theta=500000.0, head_dim=64).astype(np.float32)
    heads = {"attention.head_count": 1, "attention.head_count_kv": 1, "rope.freq_base": 500000.0}

    file = write_metadata(tmp_path / "m.gguf", tensors=[("rope_freqs.weight", factors)], **heads)

    spec = read_gguf_spec(file)
    assert spec.rope_scaling == scaling
    assert "rope_freqs.weight" not in set(GgufWeights(file, spec).names())


def test_other_rotary_factors_are_refused(tmp_path):
    heads = {"attention.head_count": 1, "attention.head_count_kv": 1}
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    with pytest.raises(ModelLoadError, match=r"rope_freqs.weight"):
        read_gguf_spec(write_metadata(tmp_path / "m.gguf", tensors=[("rope_freqs.weight", factors)], **heads))
