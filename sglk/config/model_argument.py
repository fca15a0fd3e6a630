"""`model=` given as a path or as a Hugging Face name in place of an option of the group."""

import re
from pathlib import Path

from sglk.config.quoting import quoted

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def model_overrides(value: str) -> list[str]:
    """Return the overrides that `model=<value>` stands for, or nothing when it is neither a path nor a hub name.

    A value with a slash or ending in `.gguf` is a path; but `org/name` is a hub name unless it exists here.
    The model is named after the last component.
    """
    if "/" not in value and not value.endswith(".gguf") and value not in (".", ".."):
        return []
    path = Path(value).expanduser()
    is_hub = _HUB_ID.fullmatch(value) is not None and not value.endswith(".gguf") and not path.exists()
    name = (value.rpartition("/")[2] if is_hub else path.resolve().name) or "model"
    source = quoted("model.hub_id", value) if is_hub else quoted("model.path", str(path))
    return ["model=local", source, quoted("model.name", name)]
