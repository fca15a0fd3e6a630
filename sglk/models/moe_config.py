"""The experts that a config.json describes. Needs no torch."""

from sglk.models.families import Family
from sglk.models.fields import MOST_EXPERTS, Fields
from sglk.models.spec import MoeSpec


def read_moe(config: Fields, family: Family, num_layers: int) -> MoeSpec | None:
    """Return the experts of a model, None for a dense architecture; raises ModelLoadError naming the key at fault."""
    if family.expert_width is None:
        return None
    # transformers 5 writes some families' `num_experts` under Mixtral's name for it.
    key = "num_experts" if config.has("num_experts") else "num_local_experts"
    experts = config.integer(key, most=MOST_EXPERTS)
    top_k = config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.wrong("num_experts_per_tok", f"at most `{key}` ({experts})")
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


def _dense_layers(config: Fields, num_layers: int) -> frozenset[int]:
    """Every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`."""
    step = config.integer("decoder_sparse_step", 1)
    listed = config.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(isinstance(layer, int) and layer >= 0 for layer in listed):
        raise config.wrong("mlp_only_layers", "a list of layer indices")
    return frozenset(layer for layer in range(num_layers) if layer in listed or (layer + 1) % step)
