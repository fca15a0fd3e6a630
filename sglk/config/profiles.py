"""Names of tuned profile files."""

import re
from pathlib import Path

READS_PROFILES = ("serve", "bench")
"""Commands that look for a tuned profile on their own."""


def profile_stem(model: str) -> str:
    """Return the file name, without suffix, under which a model's profile is kept."""
    return re.sub(r"[^\w.+-]+", "_", model).lstrip(".") or "_"


def profile_file(folder: str | Path, chip: str, model: str) -> Path:
    """Return where the profile of one chip and model lies in a profiles folder."""
    return Path(folder) / profile_stem(chip) / f"{profile_stem(model)}.yaml"
