"""`model=` as a path or as a Hugging Face name in place of an option of the group: taken, and told."""

import re

from sglk.config.home import expanded
from sglk.config.profiles import NATIVE
from sglk.config.quoting import quoted, typed
from sglk.config.schema import ModelConfig, ServeConfig

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def model_overrides(value: str) -> list[str]:
    """Return the overrides that `model=<value>` stands for, or nothing when it is neither a path nor a hub name.

    A value with a slash or ending in `.gguf` is a path; but `org/name` is a hub name unless it exists here.
    The model is named after the last component.
    """
    if "/" not in value and not value.endswith(".gguf") and value not in (".", ".."):
        return []
    path = expanded(value)
    is_hub = _HUB_ID.fullmatch(value) is not None and not value.endswith(".gguf") and not path.exists()
    name = (value.rpartition("/")[2] if is_hub else path.resolve().name) or "model"
    if is_hub:
        return ["model=local", quoted("model.hub_id", value), quoted("model.name", name)]
    # `./~x` must not turn into `~x`, which means a home folder where it is opened.
    given = f"./{path}" if str(path).startswith("~") else str(path)
    # A folder can be called `${model}`; where there is none of this name it is an interpolation.
    texts = [_literal(text) for text in (given, name)] if path.exists() else [given, name]
    return ["model=local", quoted("model.path", texts[0]), quoted("model.name", texts[1])]


def tune_command(config: ServeConfig) -> str:
    """Return what to type to make a tuned profile for `config`."""
    engine = "" if config.engine.name == NATIVE else f" engine={config.engine.name}"
    return f"sglk tune chip={config.chip.name} {_to_type(config.model)}{engine}"


def _to_type(model: ModelConfig) -> str:
    """Return the `model=` of a command: one that was named after its files cannot be found by that name."""
    for given in (model.path, model.hub_id):
        if given is None:
            continue
        value = given if "/" in given else f"./{given}"
        if quoted("model.name", model.name) in model_overrides(value):
            return typed("model", value)
    return typed("model", model.name)


def _literal(text: str) -> str:
    """Return what OmegaConf reads as `text` itself, without interpolations."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
