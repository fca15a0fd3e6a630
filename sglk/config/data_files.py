"""Files that are passed around, chips and tuned profiles, are data: they ask the machine nothing and run nothing."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sglk.config.search_path import PROFILES
from sglk.config.sources import Layer
from sglk.errors import ConfigError

KEYS = {"chip": ("defaults", "chip", "runtime", "backend.fallback", "backend.deny", "backend.quarantine")}
"""What the files of a group may set beside that; profiles are limited to `runtime` and `profile` when they are read."""

_RESOLVER = re.compile(r"\$\{[^}$]*:")
_CODE = re.compile(r"_(target|partial|call|args|convert|recursive)_")


def require_data(layers: Sequence[Layer]) -> None:
    """Raise ConfigError where a chip or a profile is more than data: it names code, or asks for the environment.

    Files of the user's own, such as a model or a whole `serve.yaml`, may use interpolation as Hydra has it.
    """
    for layer in layers:
        if layer.group not in ("chip", PROFILES):
            continue
        for path, value in _leaves(layer.values):
            _require_data(layer, path, value)


def _require_data(layer: Layer, path: str, value: object) -> None:
    if any(_CODE.fullmatch(part) for part in path.split(".")):
        raise ConfigError(f"{layer.file}: {path} names code to run, and a {_noun(layer)} is data; remove it")
    if isinstance(value, str) and _RESOLVER.search(value):
        raise ConfigError(
            f"{layer.file}: {path} is {value[:60]!r}, and a {_noun(layer)} may not ask the machine for values; write"
            " the value itself"
        )
    allowed = KEYS.get(layer.group)
    if allowed is not None and not any(path == key or path.startswith(f"{key}.") for key in allowed):
        raise ConfigError(f"{layer.file} sets {path}; a chip's file may set {', '.join(allowed)} only")


def _noun(layer: Layer) -> str:
    return "profile" if layer.group == PROFILES else layer.group


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every leaf with its path; keys are leaves as well, since they may be written as `${...}` too."""
    if isinstance(node, dict):
        for key, value in node.items():
            inner = f"{path}.{key}" if path else str(key)
            if isinstance(key, str) and "${" in key:
                yield inner, key
            if value == {} or value == []:
                yield inner, None
            yield from _leaves(value, inner)
    elif isinstance(node, list):
        for value in node:
            yield from _leaves(value, path)
    else:
        yield path, node
