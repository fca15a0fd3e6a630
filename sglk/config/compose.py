"""From what the user typed to one checked configuration, by Hydra's compose API."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from hydra import compose as hydra_compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sglk.config.api_keys import take_keys
from sglk.config.arguments import overrides_from
from sglk.config.bench_schema import BenchConfig
from sglk.config.check import check
from sglk.config.data_files import require_data
from sglk.config.groups import parse_groups
from sglk.config.keys import GROUPS, ROOTS
from sglk.config.ops_schema import OpsConfig
from sglk.config.plan_schema import PlanConfig
from sglk.config.profile_doubts import doubts
from sglk.config.profile_source import ProfileSource
from sglk.config.quoting import quoted
from sglk.config.render_schema import RenderConfig
from sglk.config.repository import SharedRepository
from sglk.config.schema import ServeConfig
from sglk.config.search_path import PROFILES, SearchPath, search_path, unreadable
from sglk.config.sources import Layer, raw_value, read_layers, runtime_sources, with_option
from sglk.config.tensor_parallel import ranks_of
from sglk.config.tune_schema import TuneConfig
from sglk.config.values import explain, require_values
from sglk.errors import ConfigError
from sglk.plugins import plugin_warnings
from sglk.resources import conf_dir

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
    words: list[str]
    """What was typed."""
    profile_path: Path | None
    """The tuned profile in use."""
    names_devices: bool = True
    """Whether `groups` says which devices there are; else they are the first of the chip's backend."""
    warnings: list[str] = field(default_factory=list)
    """One line for each plugin that is not what it should be, and for each reason to doubt that profile."""


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
def compose(
    command: Literal["ops"], overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> Composed[OpsConfig]: ...
@overload
def compose(
    command: Literal["plan"], overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> Composed[PlanConfig]: ...
@overload
def compose(
    command: Literal["render"], overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> Composed[RenderConfig]: ...
@overload
def compose(command: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Composed[Any]: ...
def compose(command: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Composed[Any]:
    """Compose the configuration of one command from the words that a user typed, and check it.

    `config_dir` is a folder whose files come before sglk's own. Raises ConfigError for whatever a user can get wrong.
    """
    search = search_path(config_dir)
    typed = overrides_from(overrides, command, search)
    with _hydra_lock, _hydra(search, command) as loader:
        layers: list[Layer] = []
        try:
            defaults = _defaults(loader, command, typed)
            _require_whole(defaults, command, search)
            read = loader.repository.load_config
            layers = read_layers(defaults, search, read)
            if chosen := _file_of_chips_backend(typed, layers, search):
                typed = [line for line in typed if line != "backend=auto"] + [quoted("backend", chosen)]
                swapped = with_option(layers, "backend", chosen, search, read)
                layers = swapped or read_layers(_defaults(loader, command, typed), search, read)
            require_data(layers)
            tree = hydra_compose(command, typed, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise explain(error, ROOTS[command], typed, layers, search) from error
        except RecursionError as error:
            raise ConfigError("files include each other in a circle by their defaults lists; break it") from error
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise
            raise unreadable(error, search) from error
    choices = {group: str(option) for group, option in tree.hydra.runtime.choices.items() if "/" not in group}
    with open_dict(tree):
        del tree["hydra"]
    require_values(tree, ROOTS[command], typed, layers)
    names_devices = tree.groups is not None
    config = _to_object(tree)
    _require_name(config.chip.name, "chip", choices, typed)
    take_keys(config, os.environ)
    sources = runtime_sources(typed, layers)
    check(config, sources)
    profile = next((layer.file for layer in layers if layer.group == PROFILES and layer.option != "none"), None)
    if profile is None:
        choices[PROFILES] = "none"
    warnings = [*plugin_warnings(), *search.warnings()]
    warnings += doubts(profile, config, date.today()) if profile else []
    return Composed(command, config, sources, choices, typed, list(overrides), profile, names_devices, warnings)


def _require_whole(defaults: Sequence[ResultDefault], command: str, search: SearchPath) -> None:
    # A file of the user in place of a command's own decides what is composed at all, the schema included.
    present = {str(default.config_path).partition("/")[0] for default in defaults}
    wanted = [f"sglk_{command}", *(group for group in GROUPS[command] if group != PROFILES)]
    absent = [name for name in wanted if name not in present]
    if absent:
        raise ConfigError(
            f"{search.find(command)} replaces sglk's own {command}.yaml, and its defaults list lacks"
            f" {', '.join(absent)}; begin it with the list of {conf_dir() / command}.yaml, or remove it and write"
            " <group>/<option>.yaml files"
        )


def _require_name(name: str, group: str, choices: dict[str, str], overrides: Sequence[str]) -> None:
    # Profiles are written under the name and looked for under the option.
    if name != choices[group] and not any(line.lstrip("+").startswith(f"{group}.name=") for line in overrides):
        raise ConfigError(f"{group}={choices[group]} says {group}.name={name}; give both one name")


def _file_of_chips_backend(typed: Sequence[str], layers: Sequence[Layer], search: SearchPath) -> str | None:
    """Return the option that is to stand in place of `backend=auto`: the chip's backend, if it has a file."""
    auto = any((layer.group, layer.option) == ("backend", "auto") for layer in layers)
    if not auto or any(line.lstrip("+").startswith("backend.name=") for line in typed):
        return None
    named = raw_value("chip.backend", typed, layers)
    return named[0] if named and named[0] in search.options("backend") else None


def _to_object(tree: DictConfig) -> Any:
    config = OmegaConf.to_object(tree)
    assert isinstance(config, ServeConfig)
    if config.backend.name == "auto":
        config.backend.name = config.chip.backend
    config.groups = parse_groups(config.groups, config.backend.name, ranks_of(config.runtime))
    return config


def _defaults(loader: ConfigLoader, command: str, overrides: list[str]) -> list[ResultDefault]:
    found: list[ResultDefault] = loader.compute_defaults_list(command, overrides, RunMode.RUN).defaults
    return found


@contextmanager
def _hydra(search: SearchPath, command: str) -> Iterator[ConfigLoaderImpl]:
    """Give a config loader over `search`; Hydra as the caller's own program may have set it up stays as it was."""
    _register_schema(command)
    _register_profiles()
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        # What `hydra.initialize_config_dir` does, with a search path of several folders: its own way to name further
        # folders, the override `hydra.searchpath`, cannot put one before the first and cannot hold the primary config.
        Hydra.create_main_hydra2(task_name="sglk", config_search_path=_hydra_path(search))
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        loader.repository = SharedRepository(loader.config_search_path)
        yield loader
    finally:
        GlobalHydra.instance().hydra = outer


def _hydra_path(search: SearchPath) -> ConfigSearchPath:
    first, *others = search.roots
    path = create_config_search_path(f"file://{first}")
    for root in others:
        path.prepend("sglk", f"file://{root}", anchor="schema")
    for folder in search.profiles:
        path.prepend("sglk", f"{ProfileSource.scheme()}://{folder}", anchor="schema")
    return path


@cache
def _register_schema(command: str) -> None:
    # Of one command at a time: to store a schema takes longer than to import it.
    ConfigStore.instance().store(name=f"sglk_{command}", node=ROOTS[command])


@cache
def _register_profiles() -> None:
    Plugins.instance().register(ProfileSource)
