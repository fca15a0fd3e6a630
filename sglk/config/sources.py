"""Which file, or the command line, each runtime value comes from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from sglk.config.keys import ROOTS, leaves
from sglk.config.search_path import PROFILES, SearchPath
from sglk.errors import ConfigError

Read: TypeAlias = Callable[[str], ConfigResult | None]
"""Returns what Hydra has read, or reads, for a path such as `chip/cpu`."""


@dataclass(frozen=True)
class Layer:
    """What one file contributes to the composed tree; later layers are stronger."""

    group: str
    """Empty for the file of a command."""
    option: str
    file: Path
    values: dict[str, Any]
    """Raw tree, interpolations as written."""

    @property
    def label(self) -> str:
        """The layer's name for people."""
        if self.group == PROFILES:
            return f"profile {self.file}"
        return f"{self.group} {self.option}" if self.group else str(self.file)


def read_layers(defaults: Iterable[ResultDefault], search: SearchPath, read: Read) -> list[Layer]:
    """Return the files behind Hydra's final defaults list, weakest first; schemas, which have no file, are left out."""
    layers = []
    for default in defaults:
        file = search.find(default.config_path or "")
        if file is None:
            continue
        path = str(default.config_path)
        group, _, option = path.partition("/")
        values = _values(file, path, default.package, read)
        layers.append(Layer(group if option else "", option or group, file, values))
    return layers


def _values(file: Path, config_path: str, package: str | None, read: Read) -> dict[str, Any]:
    found = read(config_path)
    if found is None or not isinstance(found.config, DictConfig):
        raise ConfigError(f"{file} holds no mapping; write key: value lines")
    values = OmegaConf.to_container(found.config)
    assert isinstance(values, dict)
    tree = {str(key): value for key, value in values.items()}
    for name in reversed(package.split(".") if package else []):
        tree = {name: tree}
    return tree


def runtime_sources(overrides: Sequence[str], layers: Sequence[Layer]) -> dict[str, str]:
    """Return where each `runtime.*` value comes from."""
    sources = {path: "default" for path in leaves(ROOTS["serve"]) if path.startswith("runtime.")}
    for layer in layers:
        runtime = layer.values.get("runtime")
        for name in runtime if isinstance(runtime, dict) else ():
            sources[f"runtime.{name}"] = layer.label
    for line in overrides:
        override = OverridesParser.create().parse_override(line)
        value = override.value()
        if override.key_or_group == "runtime" and isinstance(value, dict):
            sources.update({f"runtime.{name}": "command line" for name in value})
        elif override.key_or_group.startswith("runtime."):
            sources[override.key_or_group] = "command line"
    return sources


def inherited_runtime(sources: Mapping[str, str]) -> frozenset[str]:
    """Return the runtime parameters that a chip's file or a tuned profile says, and nobody has stated."""
    found = (name for name, source in sources.items() if source.startswith(("chip ", "profile ")))
    return frozenset(name.removeprefix("runtime.") for name in found)


def raw_value(path: str, overrides: Sequence[str], layers: Sequence[Layer]) -> tuple[str, str] | None:
    """Return the strongest value written for a dotted path, as text, and where it is written."""
    for line in reversed(overrides):
        key, _, value = line.lstrip("+").partition("=")
        if key == path:
            return value, "command line"
        if path.startswith(f"{key}.") and value.startswith("{"):
            mapping = OverridesParser.create().parse_override(line).value()
            inner = value_at(mapping, path.removeprefix(f"{key}."))
            if inner is not ABSENT:
                return as_yaml(inner), "command line"
    for layer in reversed(layers):
        value = value_at(layer.values, path)
        if value is not ABSENT:
            return as_yaml(value), str(layer.file)
    return None


ABSENT = object()
"""What `value_at` returns where a tree has nothing."""


def value_at(tree: Any, path: str) -> Any:
    """Return the value at a dotted path of nested mappings, or ABSENT."""
    if not isinstance(tree, dict) or path in tree:
        return tree.get(path) if isinstance(tree, dict) else ABSENT
    # Names may hold dots themselves, as those of a search space do.
    dots = (place for place, sign in enumerate(path) if sign == ".")
    found = (value_at(tree[path[:dot]], path[dot + 1 :]) for dot in dots if path[:dot] in tree)
    return next((value for value in found if value is not ABSENT), ABSENT)


def as_yaml(value: Any) -> str:
    """Return a value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
