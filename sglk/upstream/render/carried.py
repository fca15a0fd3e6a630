"""What of a user's words and files rendered files carry: all but what is about rendering, and no secrets."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from sglk.config.quoting import list_text
from sglk.config.secrets import masked
from sglk.errors import ConfigError

_RENDERING = ("target", "render")

_KEYS = ("api_key", "admin_api_key", "api_key_file", "admin_api_key_file")
"""Of `server`: a rendered server has them from its environment."""


def carried(words: Sequence[str]) -> Iterator[str]:
    """Yield what was typed and stands in rendered commands too; raises ConfigError for a secret among it."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        node, _, rest = key.partition(".")
        if node in _RENDERING or (node == "server" and rest in _KEYS):
            continue
        if key == "server" and isinstance(given := _value(word), dict):
            kept = {name: each for name, each in given.items() if name not in _KEYS}
            word = f"{word.partition('=')[0]}={list_text(kept)}"
        if masked(value := _value(word), key.rpartition(".")[2]) != value:
            raise ConfigError(f"{key} is a secret, which rendered files do not carry; set it where they are used")
        yield word


def without_secrets(file: Path) -> str:
    """Return the text of a YAML file; raises ConfigError for one that holds secrets."""
    text = file.read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    if masked(tree) != tree:
        raise ConfigError(
            f"{file} holds a secret, which rendered files do not carry; take it out and set it where they are used"
        )
    return text


def _value(word: str) -> Any:
    if "=" not in word:
        return None
    return OverridesParser.create().parse_override(word).value()
