"""Hydra's loader of configurations, which composes Hydra's own settings only where they are asked for."""

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, OmegaConf, open_dict

from sglk.config.file_source import FileSource
from sglk.config.profile_source import ProfileSource
from sglk.config.repository import SharedRepository
from sglk.config.search_path import SearchPath


class Loader(ConfigLoaderImpl):
    """Composes what the files of one search path say.

    What Hydra puts in front, the settings of its own launchers and loggers, is two thirds of its work and is no part of
    a configuration of sglk: `with_hydra` asks for it, which files that speak of `hydra` need.
    """

    def __init__(self, search: SearchPath, with_hydra: bool) -> None:
        setup_globals()  # `${now:...}` and the like, which Hydra's command line brings
        path = _search_path(search, with_hydra)
        super().__init__(path)
        self.repository = SharedRepository(path)
        self._with_hydra = with_hydra

    def defaults_list(self, command: str, overrides: list[str]) -> DefaultsList:
        """Return what a command is composed of, weakest first."""
        parsed, repository = self._parse_overrides_and_create_caching_repo(command, overrides)
        return create_defaults_list(
            repo=repository,
            config_name=command,
            overrides_list=parsed,
            prepend_hydra=self._with_hydra,
            skip_missing=False,
        )

    def tree(self, found: DefaultsList) -> DictConfig:
        """Return the values of a defaults list and of its overrides; once per loader, since values are moved."""
        tree: DictConfig = self._compose_config_from_defaults_list(found.defaults, self.repository)
        OmegaConf.set_struct(tree, True)
        self._apply_overrides_to_config(found.config_overrides, tree)
        with open_dict(tree):
            tree.pop("hydra", None)
        return tree


def _search_path(search: SearchPath, with_hydra: bool) -> ConfigSearchPath:
    """Return `search` as Hydra has it, with the names of the schemas behind it.

    Hydra's own way to name further folders, the override `hydra.searchpath`, cannot put one before the first and cannot
    hold the primary config.
    """
    registry = SourcesRegistry.instance()
    sources: tuple[type[ConfigSource], ...] = (FileSource, ProfileSource, StructuredConfigSource)
    for source in sources:
        registry.register(source)
    first, *others = search.roots
    # Hydra's own path has what its plugins bring, all of which it imports.
    path = create_config_search_path(None) if with_hydra else ConfigSearchPathImpl()
    if not with_hydra:
        path.append("schema", "structured://")
    path.prepend("main", f"{FileSource.scheme()}://{first}", anchor="schema")
    for root in others:
        path.prepend("sglk", f"{FileSource.scheme()}://{root}", anchor="schema")
    for folder in search.profiles:
        path.prepend("sglk", f"{ProfileSource.scheme()}://{folder}", anchor="schema")
    return path
