"""From what the user typed to one checked configuration, by Hydra's compose API."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sglk.config.api_keys import take_keys
from sglk.config.arguments import overrides_from
from sglk.config.bench_schema import BenchConfig
from sglk.config.check import check
from sglk.config.data_files import require_data
from sglk.config.groups import parse_groups
from sglk.config.keys import GROUPS, ROOTS
from sglk.config.loader import Loader
from sglk.config.ops_schema import OpsConfig
from sglk.config.plan_schema import PlanConfig
from sglk.config.profile_doubts import doubts, today
from sglk.config.quoting import quoted
from sglk.config.render_schema import RenderConfig
from sglk.config.schema import ServeConfig
from sglk.config.search_path import PROFILES, SearchPath, search_path, unreadable
from sglk.config.sources import Layer, raw_value, read_layers, runtime_sources
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
    with _hydra_lock:
        _register_schema(command)
        try:
            found = _found(command, typed, search, with_hydra=False)
        except ConfigError:
            # Files that speak of Hydra's own settings, which sglk has no use for, are sound to Hydra.
            found = _found(command, typed, search, with_hydra=True)
    require_values(found.tree, ROOTS[command], found.overrides, found.layers)
    names_devices = found.tree.groups is not None
    config = _to_object(found.tree)
    _require_name(config.chip.name, "chip", found.choices, found.overrides)
    take_keys(config, os.environ)
    sources = runtime_sources(found.overrides, found.layers)
    check(config, sources)
    profile = next((layer.file for layer in found.layers if layer.group == PROFILES and layer.option != "none"), None)
    if profile is None:
        found.choices[PROFILES] = "none"
    warnings = [*plugin_warnings(), *search.warnings()]
    warnings += doubts(profile, config, today()) if profile else []
    return Composed(
        command, config, sources, found.choices, found.overrides, list(overrides), profile, names_devices, warnings
    )


@dataclass(frozen=True)
class _Found:
    """What Hydra makes of the files."""

    tree: DictConfig
    layers: list[Layer]
    choices: dict[str, str]
    overrides: list[str]


def _found(command: str, overrides: list[str], search: SearchPath, with_hydra: bool) -> _Found:
    layers: list[Layer] = []
    try:
        loader = Loader(search, with_hydra)
        read = loader.repository.load_config
        found = loader.defaults_list(command, overrides)
        _require_whole(found.defaults, command, search)
        layers = read_layers(found.defaults, search, read)
        if chosen := _file_of_chips_backend(overrides, layers, search):
            overrides = [line for line in overrides if line != "backend=auto"] + [quoted("backend", chosen)]
            found = loader.defaults_list(command, overrides)
            layers = read_layers(found.defaults, search, read)
        require_data(layers)
        tree = loader.tree(found)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise explain(error, ROOTS[command], overrides, layers, search) from error
    except OverflowError as error:
        raise ConfigError(
            "a number has hundreds of digits, more than any setting takes; write a smaller one"
        ) from error
    except RecursionError as error:
        raise ConfigError("files include each other in a circle by their defaults lists; break it") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise
        raise unreadable(error, search) from error
    choices = {group: str(option) for group, option in found.overrides.known_choices.items() if "/" not in group}
    return _Found(tree, layers, choices, overrides)


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


@cache
def _register_schema(command: str) -> None:
    # Of one command at a time: to store a schema takes longer than to import it.
    ConfigStore.instance().store(name=f"sglk_{command}", node=ROOTS[command])
