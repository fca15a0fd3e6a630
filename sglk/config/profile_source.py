"""The tuned profiles as a Hydra config source: `profiles/<chip>/<model>.yaml` of one folder and nothing else of it."""

import os
from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from sglk.config.search_path import PROFILES
from sglk.errors import ConfigError

ALLOWED = {"runtime", "profile"}


class ProfileSource(ConfigSource):
    """Serves the group `profiles` from a folder.

    A plain search path entry for the caller's directory would also offer its `chip/`, `model/` or `serve.yaml`,
    whatever they are; this source has no other group.
    """

    @staticmethod
    def scheme() -> str:
        """Return the scheme of search path entries that Hydra gives to this class."""
        return "sglk-profiles"

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one profile; ConfigError when it sets anything but runtime values and their provenance."""
        file = self._file(config_path)
        config = OmegaConf.load(file)
        foreign = sorted(str(key) for key in set(config) - ALLOWED)
        if foreign:
            raise ConfigError(f"profile {str(file)!r} sets {foreign}; a profile may hold `runtime` and `profile` only")
        return ConfigResult(self.provider, self.full_path(), config, header={"package": "_global_"})

    def is_group(self, config_path: str) -> bool:
        """Whether `config_path` is `profiles` or a chip's folder in it."""
        return config_path == PROFILES or (config_path.startswith(f"{PROFILES}/") and self._path(config_path).is_dir())

    def is_config(self, config_path: str) -> bool:
        """Whether `config_path` is a profile; ConfigError for something else in the place of one."""
        if not config_path.startswith(f"{PROFILES}/"):
            return False
        file = self._file(config_path)
        if os.path.lexists(file) and not file.is_file():
            what = "is a link to nothing" if file.is_symlink() and not file.exists() else "is not a file"
            raise ConfigError(f"profile {str(file)!r} {what}; repair or remove it, or write profiles=none")
        return file.is_file()

    def available(self) -> bool:
        """Whether the folder exists."""
        return Path(self.path).is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names below `config_path`, without suffixes."""
        if config_path == "":
            return [] if results_filter == ObjectType.CONFIG else [PROFILES]
        names: list[str] = []
        for entry in self._path(config_path).iterdir():
            self._list_add_result(names, f"{config_path}/{entry.name}", entry.name, results_filter)
        return sorted(set(names))

    def _path(self, config_path: str) -> Path:
        return Path(self.path) / config_path.removeprefix(PROFILES).lstrip("/")

    def _file(self, config_path: str) -> Path:
        path = self._path(config_path)
        return path if path.suffix == ".yaml" else path.with_name(f"{path.name}.yaml")
