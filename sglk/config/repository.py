"""Where Hydra looks for files, with every file read once, however often the defaults list is computed."""

from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult


class SharedRepository(ConfigRepository):
    """A repository that all passes of one composition share.

    Hydra takes a deep copy for each pass, since a pass may add folders to it (`hydra.searchpath`). Passes over the same
    words add the same folders, so here the copy is the repository itself, with what it has read.
    """

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self._read: dict[str, ConfigResult | None] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return what the first pass has read, or read it; None where there is no such file."""
        if config_path not in self._read:
            self._read[config_path] = super().load_config(config_path)
        return self._read[config_path]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedRepository":
        return self
