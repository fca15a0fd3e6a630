"""Names of tuned profile files, and the hash of what is in one."""

import json
import re
from pathlib import Path
from typing import Any

NATIVE = "native"
"""sglk's own engine, in the server's own process; the others are upstream engines, with processes of their own."""

READS_PROFILES = ("serve", "bench", "ops", "plan", "simulate", "render")
"""Commands that look for a tuned profile on their own."""


def profile_stem(model: str) -> str:
    """Return the file name, without suffix, under which a model's profile is kept."""
    return re.sub(r"[^\w.+-]+", "_", model).lstrip(".") or "_"


def of_engine(model: str, engine: str) -> str:
    """Return the name of a model's profile for an engine: what suits one engine says nothing of another."""
    return model if engine == NATIVE else f"{model}-{engine}"


def profile_file(folder: str | Path, chip: str, model: str, engine: str = NATIVE) -> Path:
    """Return where the profile of one chip, model and engine lies in a profiles folder."""
    return Path(folder) / profile_stem(chip) / f"{profile_stem(of_engine(model, engine))}.yaml"


def engine_range(version: str) -> str:
    """Return the sglk versions for which a profile holds: before 1.0 every minor version may change the engine."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    assert numbers is not None
    major, minor = map(int, numbers.groups())
    return f">={major}.{minor},<{major}.{minor + 1}" if major == 0 else f">={major}.{minor},<{major + 1}"


def content_hash(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a profile's content, its own `profile.hash` left out."""
    import hashlib  # brings OpenSSL, which most commands do without

    bare = {**content, "profile": {**content["profile"], "hash": None}}
    # What YAML reads as a date was text when the hash was made.
    return hashlib.sha256(json.dumps(bare, sort_keys=True, default=str).encode()).hexdigest()
