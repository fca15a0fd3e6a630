"""Which layers of a config.json attend within a sliding window, and how wide it is. Needs no torch."""

from sglk.models.families import WindowRule
from sglk.models.fields import Fields

Windows = tuple[int | None, ...]


def sliding_windows(config: Fields, rule: WindowRule | None, num_layers: int, context: int) -> Windows:
    """Return the window of each layer in tokens, None for none; empty where no layer is limited within `context`.

    `layer_types` decides layer by layer where it is given, else the `rule` of the architecture. Raises
    ModelLoadError where `layer_types` is malformed or asks for a window that is switched off.
    """
    if rule is None:
        return ()
    window = _window(config, rule)
    slides = _layer_types(config, num_layers) or [_slides(config, rule, layer) for layer in range(num_layers)]
    if window is None:
        if config.has("layer_types") and any(slides):
            raise config.wrong("layer_types", "all 'full_attention' where the sliding window is off")
        return ()
    if window >= context or not any(slides):
        return ()
    return tuple(window if sliding else None for sliding in slides)


def _window(config: Fields, rule: WindowRule) -> int | None:
    if rule.switched and not config.flag("use_sliding_window", False):
        return None
    # Absent is not null here: configuration classes fill their default in.
    if config.values.get("sliding_window", rule.default) is None:
        return None
    return config.integer("sliding_window", rule.default)


def _layer_types(config: Fields, num_layers: int) -> list[bool] | None:
    types = config.values.get("layer_types")
    if types is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in known for kind in types):
        raise config.wrong(
            "layer_types", f"a list of {num_layers} (one for each layer), each 'full_attention' or 'sliding_attention'"
        )
    return [kind == "sliding_attention" for kind in types]


def _slides(config: Fields, rule: WindowRule, layer: int) -> bool:
    if rule.layers == "all":
        return True
    boundary = config.count("max_window_layers", 28)
    if rule.layers == "from_max_window_layers":
        return layer >= boundary
    return layer % 2 == 0 and layer < boundary
