"""What can be chosen for `chip=` and `model=`, without composing a deployment for each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sglk.config.schema import ChipConfig, ModelConfig
from sglk.config.search_path import SearchPath, search_path
from sglk.errors import ConfigError

NodeT = TypeVar("NodeT", ChipConfig, ModelConfig)
EntryT = TypeVar("EntryT")


@dataclass(frozen=True)
class Chip:
    """One option of the group `chip`: figures, and the runtime values it brings."""

    config: ChipConfig
    runtime: dict[str, Any]


@dataclass(frozen=True)
class Listing(Generic[EntryT]):
    """The options of one group."""

    entries: list[EntryT]
    problems: list[str]
    """One line for each file that cannot be read; the others are listed all the same."""


def chips(config_dir: str | Path | None = None) -> Listing[Chip]:
    """Return every chip that `chip=` accepts."""
    return _listing("chip", config_dir, _chip)


def models(config_dir: str | Path | None = None) -> Listing[ModelConfig]:
    """Return every model that `model=` accepts by name."""
    return _listing("model", config_dir, lambda content: _typed(ModelConfig, content))


def _listing(group: str, config_dir: str | Path | None, entry_of: Callable[[DictConfig], EntryT]) -> Listing[EntryT]:
    search = search_path(config_dir)
    entries, problems = [], []
    for option in search.options(group):
        path = f"{group}/{option}"
        try:
            entries.append(entry_of(_content(path, search, ())))
        except ConfigError as error:
            problems.append(str(error))
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            problems.append(f"{search.find(path)}: {_one_line(error)}")
    return Listing(entries, list(dict.fromkeys(problems)))


def _chip(content: DictConfig) -> Chip:
    if "chip" not in content:
        raise ValueError("there is no `chip:` node; write one, below a first line `# @package _global_`")
    for node in ("chip", "runtime"):
        if node in content and not isinstance(content[node], DictConfig):
            raise ValueError(f"{node}={content[node]} is not a mapping")
    runtime = OmegaConf.to_container(content.get("runtime", OmegaConf.create()), resolve=True)
    assert isinstance(runtime, dict)
    return Chip(_typed(ChipConfig, content["chip"]), {str(key): value for key, value in runtime.items()})


def _content(path: str, search: SearchPath, children: tuple[str, ...]) -> DictConfig:
    """Read one file on top of the options of the same group that its defaults list names.

    `children` are the files, by `group/option`, whose defaults lists led here.
    """
    file = search.find(path)
    if file is None:
        raise ConfigError(f"{search.find(children[-1])}: {path!r}, named in the defaults list, does not exist")
    if path in children:
        raise ConfigError(f"{file}: includes itself by its defaults list; break the circle")
    content = _loaded(file)
    parents = content.pop("defaults", None)
    if not isinstance(parents, ListConfig | None):
        raise ConfigError(f"{file}: defaults={parents} is not a list")
    below = OmegaConf.create()
    for parent in parents or ():
        if isinstance(parent, str) and parent != "_self_":
            below.merge_with(_content(f"{path.partition('/')[0]}/{parent}", search, (*children, path)))
    below.merge_with(content)
    return below


def _loaded(file: Path) -> DictConfig:
    try:
        content = OmegaConf.load(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        # OmegaConf's own: the file is neither mapping nor list.
        reason = f"cannot be read: {error.strerror}" if error.strerror else "holds no mapping"
        raise ConfigError(f"{file} {reason}") from error
    except (YAMLError, RecursionError) as error:
        raise ConfigError(f"{file}: {_one_line(error)}") from error
    if not isinstance(content, DictConfig):
        raise ConfigError(f"{file} holds no mapping; write key: value lines")
    return content


def _typed(schema: type[NodeT], content: Any) -> NodeT:
    node = OmegaConf.merge(OmegaConf.structured(schema), content)
    missing = sorted(str(name) for name in OmegaConf.missing_keys(node))
    if missing:
        raise ValueError(f"no value for {', '.join(missing)}")
    config = OmegaConf.to_object(node)
    assert isinstance(config, schema)
    return config


def _one_line(error: Exception) -> str:
    # The lines below the first are OmegaConf's own notes on keys and types.
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key}: {str(error).splitlines()[0]}" if error.full_key else str(error).splitlines()[0]
    return " ".join(str(error).split()) or type(error).__name__
