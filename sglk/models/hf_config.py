"""Architecture numbers from a Hugging Face folder: config.json and generation_config.json."""

from pathlib import Path

from sglk.models.families import FAMILIES, Family
from sglk.models.fields import MOST_HEAD_WIDTH, MOST_LAYERS, Fields, read_json, read_json_if_present
from sglk.models.latent_config import read_latent
from sglk.models.moe_config import read_moe
from sglk.models.registry import check_known
from sglk.models.rope_scaling import normalise_rope
from sglk.models.sliding_window import sliding_windows
from sglk.models.spec import ModelSpec


def read_spec(folder: Path) -> ModelSpec:
    """Return the spec of the model in `folder`; raises ModelLoadError naming the file and the key at fault."""
    config = read_json(folder / "config.json")
    generation = read_json_if_present(folder / "generation_config.json")
    return spec_from_config(config, generation)


def spec_from_config(config: Fields, generation: Fields) -> ModelSpec:
    """Return the spec that the contents of config.json and generation_config.json describe."""
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    _refuse_unsupported(config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    latent = read_latent(config) if family.latent else None
    # Of latent attention every head has keys and values of its own, made when they are needed.
    kv_heads, head_dim = (heads, latent.v_head_dim) if latent else _kv_heads(config, family, hidden, heads)
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    theta, scaling, context = normalise_rope(config, family.rope_theta)
    qkv_bias, output_bias = _biases(config, family)
    return ModelSpec(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        max_position_embeddings=context,
        rms_norm_eps=config.number("rms_norm_eps", family.rms_norm_eps),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        attention_bias=qkv_bias,
        attention_output_bias=output_bias,
        mlp_bias=config.flag("mlp_bias", False),
        sliding_windows=sliding_windows(config, family.window, layers, context),
        moe=read_moe(config, family, layers),
        latent=latent,
        bos_token_id=min(config.token_ids("bos_token_id"), default=None),
        eos_token_ids=config.token_ids("eos_token_id") | generation.token_ids("eos_token_id"),
    )


def _architecture(config: Fields) -> str:
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.wrong("architectures", "a list with a class name, such as ['LlamaForCausalLM']")
    # First of all: a foreign configuration also lacks keys, and that is not what its owner wants to hear.
    check_known(names[0])
    return names[0]


def _kv_heads(config: Fields, family: Family, hidden: int, heads: int) -> tuple[int, int]:
    """Return the number of key-value heads, and the width of every head."""
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of `num_attention_heads` ({heads})")
    if not config.has("head_dim") and family.head_dim is None and hidden % heads:
        raise config.wrong("hidden_size", f"a multiple of `num_attention_heads` ({heads}) where `head_dim` is absent")
    head_dim = config.integer("head_dim", family.head_dim or hidden // heads, most=MOST_HEAD_WIDTH)
    if head_dim % 2:
        key = "head_dim" if config.has("head_dim") else "hidden_size"
        wanted = f"such that heads are of even width (positions turn pairs), and they are {head_dim} wide"
        raise config.wrong(key, wanted)
    return kv_heads, head_dim


def _refuse_unsupported(config: Fields) -> None:
    """Refuse what would load and then compute something else than the model's authors meant."""
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise config.wrong("hidden_act", "'silu'")


def _biases(config: Fields, family: Family) -> tuple[bool, bool]:
    """Return whether q, k and v carry a bias, and whether the attention's output does."""
    if family.bias == "attention_bias":
        biased = config.flag("attention_bias", False)
        return biased, biased
    return family.bias == "qkv" or config.flag("qkv_bias", True), False
