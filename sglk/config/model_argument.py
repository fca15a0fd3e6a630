"""`model=` given as a path or as a Hugging Face name in place of an option of the group."""

import re
from pathlib import Path

from sglk.config.keys import GROUPS
from sglk.config.profiles import profile_stem
from sglk.config.quoting import quoted

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

READS_PROFILES = ("serve", "bench")
"""Commands that look for a tuned profile on their own."""


def model_overrides(value: str, command: str) -> list[str]:
    """Return the overrides that `model=<value>` stands for, or nothing when it is neither a path nor a hub name.

    A value with a slash or ending in `.gguf` is a path; but `org/name` is a hub name unless it exists here.
    The profile is looked up under the last component, after the user's own `profiles=`, if any.
    """
    if "/" not in value and not value.endswith(".gguf") and value not in (".", ".."):
        return []
    path = Path(value).expanduser()
    is_hub = _HUB_ID.fullmatch(value) is not None and not value.endswith(".gguf") and not path.exists()
    name = (value.rpartition("/")[2] if is_hub else path.resolve().name) or "model"
    source = quoted("model.hub_id", value) if is_hub else quoted("model.path", str(path))
    overrides = ["model=local", source, quoted("model.name", name)]
    if command in READS_PROFILES and "profiles" in GROUPS[command]:
        overrides.append(quoted("profiles", f"${{chip}}/{profile_stem(name)}"))
    return overrides
