"""What can be chosen for `chip=` and `model=`, without composing a deployment for each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sglk.config.schema import ChipConfig, ModelConfig
from sglk.config.search_path import search_path
from sglk.errors import ConfigError

NodeT = TypeVar("NodeT", ChipConfig, ModelConfig)


@dataclass(frozen=True)
class Chip:
    """One option of the group `chip`: figures, and the runtime values it brings."""

    config: ChipConfig
    runtime: dict[str, Any]


def chips(config_dir: str | Path | None = None) -> list[Chip]:
    """Return every chip that `chip=` accepts."""
    found = []
    for content in _contents("chip", config_dir):
        runtime = OmegaConf.to_container(content.get("runtime") or OmegaConf.create())
        assert isinstance(runtime, dict)
        found.append(Chip(_typed(ChipConfig, content.get("chip")), {str(key): value for key, value in runtime.items()}))
    return found


def models(config_dir: str | Path | None = None) -> list[ModelConfig]:
    """Return every model that `model=` accepts by name."""
    return [_typed(ModelConfig, content) for content in _contents("model", config_dir)]


def _contents(group: str, config_dir: str | Path | None) -> list[DictConfig]:
    search = search_path(config_dir)
    return [_content(f"{group}/{option}", config_dir) for option in search.options(group)]


def _content(config_path: str, config_dir: str | Path | None) -> DictConfig:
    """Read one file on top of the options of the same group that its defaults list names."""
    file = search_path(config_dir).find(config_path)
    if file is None:
        raise ConfigError(f"{config_path!r}, named in a defaults list, does not exist")
    content = OmegaConf.load(file)
    if not isinstance(content, DictConfig):
        raise ConfigError(f"{file} holds no mapping")
    group = config_path.partition("/")[0]
    below = OmegaConf.create()
    for parent in content.pop("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            below.merge_with(_content(f"{group}/{parent}", config_dir))
    below.merge_with(content)
    return below


def _typed(schema: type[NodeT], content: Any) -> NodeT:
    try:
        node = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), content or {}))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{schema.__name__}: {str(error).splitlines()[0]}") from error
    assert isinstance(node, schema)
    return node
