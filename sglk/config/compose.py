"""From what the user typed to one checked configuration, by Hydra's compose API."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sglk.config.arguments import overrides_from
from sglk.config.check import check
from sglk.config.groups import parse_groups
from sglk.config.keys import ROOTS
from sglk.config.profile_source import ProfileSource
from sglk.config.quoting import quoted_value
from sglk.config.schema import BenchConfig, ServeConfig, TuneConfig
from sglk.config.search_path import PROFILES, SearchPath, search_path
from sglk.config.sources import Layer, read_layers, runtime_sources
from sglk.config.values import explain, require_values

RootT = TypeVar("RootT", bound=ServeConfig)

# Hydra keeps its state in singletons.
_hydra_lock = threading.Lock()


@dataclass(frozen=True)
class Composed(Generic[RootT]):
    """A configuration and where it comes from."""

    command: str
    config: RootT
    sources: dict[str, str]
    """Per `runtime.*` key: `command line`, `profile <path>`, `chip <name>`, `runtime <name>` or `default`."""
    choices: dict[str, str]
    """Chosen option per group."""
    overrides: list[str]
    """What was handed to Hydra."""
    profile_path: Path | None
    """The tuned profile in use."""


@overload
def compose(
    command: Literal["serve"], overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> Composed[ServeConfig]: ...
@overload
def compose(
    command: Literal["bench"], overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> Composed[BenchConfig]: ...
@overload
def compose(
    command: Literal["tune"], overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> Composed[TuneConfig]: ...
@overload
def compose(command: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Composed[Any]: ...
def compose(command: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Composed[Any]:
    """Compose the configuration of one command from the words that a user typed, and check it.

    `config_dir` is a folder whose files come before sglk's own. Raises ConfigError for whatever a user can get wrong.
    """
    search = search_path(config_dir)
    typed = overrides_from(overrides, command, search)
    with _hydra_lock, _hydra(search) as loader:
        layers: list[Layer] = []
        try:
            passed = [*typed, _search_path_override(search)]
            defaults = _defaults(loader, command, passed)
            layers = read_layers([default for default in defaults if default.config_path != "hydra/config"], search)
            tree = hydra_compose(command, passed, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise explain(error, ROOTS[command], typed, layers) from error
    choices = {group: str(option) for group, option in tree.hydra.runtime.choices.items() if "/" not in group}
    with open_dict(tree):
        del tree["hydra"]
    require_values(tree, ROOTS[command], typed, layers)
    config = _to_object(tree)
    check(config)
    profile = next((layer.file for layer in layers if layer.group == PROFILES and layer.option != "none"), None)
    if profile is None:
        choices[PROFILES] = "none"
    return Composed(command, config, runtime_sources(typed, layers), choices, typed, profile)


def _to_object(tree: DictConfig) -> Any:
    config = OmegaConf.to_object(tree)
    assert isinstance(config, ServeConfig)
    if config.backend.name == "auto":
        config.backend.name = config.chip.backend
    config.groups = parse_groups(config.groups, config.backend.name, config.runtime.tp_size)
    return config


def _defaults(loader: ConfigLoader, command: str, overrides: list[str]) -> list[ResultDefault]:
    found: list[ResultDefault] = loader.compute_defaults_list(command, overrides, RunMode.RUN).defaults
    return found


def _search_path_override(search: SearchPath) -> str:
    entries = [f"file://{root}" for root in search.roots[1:]]
    entries += [f"{ProfileSource.scheme()}://{folder}" for folder in search.profiles]
    return f"hydra.searchpath=[{','.join(quoted_value(entry) for entry in entries)}]"


@contextmanager
def _hydra(search: SearchPath) -> Iterator[ConfigLoader]:
    """Give a config loader over `search`; Hydra as the caller's own program may have set it up stays as it was."""
    store = ConfigStore.instance()
    for command, root in ROOTS.items():
        store.store(name=f"sglk_{command}", node=root)
    Plugins.instance().register(ProfileSource)
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(search.roots[0]), job_name="sglk", version_base=None):
            yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().hydra = outer
