"""The latent attention that a config.json describes. Needs no torch."""

from sglk.models.fields import MOST_HEAD_WIDTH, Fields
from sglk.models.spec import LatentSpec


def read_latent(config: Fields) -> LatentSpec:
    """Return the widths of latent attention; raises ModelLoadError naming the key at fault."""
    if config.flag("attention_bias", False):
        raise config.wrong("attention_bias", "false")
    turning = config.integer("qk_rope_head_dim", most=MOST_HEAD_WIDTH)
    if turning % 2:
        raise config.wrong("qk_rope_head_dim", "even (positions turn pairs)")
    return LatentSpec(
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_nope_head_dim=config.integer("qk_nope_head_dim", most=MOST_HEAD_WIDTH),
        qk_rope_head_dim=turning,
        v_head_dim=config.integer("v_head_dim", most=MOST_HEAD_WIDTH),
        q_lora_rank=config.integer("q_lora_rank") if config.has("q_lora_rank") else None,
    )
