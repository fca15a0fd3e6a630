"""The experts that a config.json describes. Needs no torch."""

from sglk.models.families import Family
from sglk.models.fields import MOST_EXPERTS, Fields
from sglk.models.spec import MoeSpec


def read_moe(config: Fields, family: Family, num_layers: int) -> MoeSpec | None:
    """Return the experts of a model, None for a dense architecture; raises ModelLoadError naming the key at fault."""
    if family.expert_width is None:
        return None
    if family.latent:
        return _deepseek(config, family.expert_width, num_layers)
    # transformers 5 writes some families' `num_experts` under Mixtral's name for it.
    key = "num_experts" if config.has("num_experts") else "num_local_experts"
    experts, top_k = _chosen(config, key)
    return MoeSpec(
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=config.integer(family.expert_width),
        norm_topk_prob=config.flag("norm_topk_prob", False) if family.norm_topk_prob is None else family.norm_topk_prob,
        shared_expert_intermediate_size=(
            config.integer("shared_expert_intermediate_size") if family.shared_expert else None
        ),
        dense_layers=_dense_layers(config, num_layers),
    )


def _deepseek(config: Fields, width_key: str, num_layers: int) -> MoeSpec | None:
    """Return the experts as DeepSeek's configuration class names them; its shared ones are one block of their widths.

    The first layers are dense, and of the others every `moe_layer_freq`-th has experts.
    """
    if not config.has("n_routed_experts"):
        return None
    experts, top_k = _chosen(config, "n_routed_experts")
    width, shared = config.integer(width_key), config.count("n_shared_experts", 0)
    first, step = config.count("first_k_dense_replace", 0), config.integer("moe_layer_freq", 1)
    return MoeSpec(
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=width,
        norm_topk_prob=config.flag("norm_topk_prob", False),
        shared_expert_intermediate_size=shared * width or None,
        shared_expert_gate=False,
        dense_layers=frozenset(layer for layer in range(num_layers) if layer < first or layer % step),
    )


def _chosen(config: Fields, key: str) -> tuple[int, int]:
    """Return how many experts there are, and how many of them a token visits."""
    experts = config.integer(key, most=MOST_EXPERTS)
    top_k = config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.wrong("num_experts_per_tok", f"at most `{key}` ({experts})")
    return experts, top_k


def _dense_layers(config: Fields, num_layers: int) -> frozenset[int]:
    """Every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`."""
    step = config.integer("decoder_sparse_step", 1)
    listed = config.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(isinstance(layer, int) and layer >= 0 for layer in listed):
        raise config.wrong("mlp_only_layers", "a list of layer indices")
    return frozenset(layer for layer in range(num_layers) if layer in listed or (layer + 1) % step)
