"""Files of a user, and what is said of them."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.errors import ConfigError


def refusal(command: str, *words: str, config_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(command, words, config_dir)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def write_profile(folder: Path, chip: str, model: str, text: str = "runtime:\n  chunked_prefill_size: 1024\n") -> Path:
    return write(folder / "profiles" / chip / f"{model}.yaml", f"# @package _global_\n{text}")
