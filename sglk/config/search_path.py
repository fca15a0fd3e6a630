"""Where configuration files are looked for, strongest folder first."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglk.config.home import expanded
from sglk.errors import ConfigError
from sglk.plugins import allow_list
from sglk.plugins.conf_folders import ConfFolder, bringers, clash_text, conf_folders
from sglk.resources import conf_dir, profiles_dir

PROFILES = "profiles"


@dataclass(frozen=True)
class SearchPath:
    """Folders of configuration groups and folders of tuned profiles, each strongest first."""

    roots: tuple[Path, ...]
    """Hold `<group>/<option>.yaml`: the caller's `--config-dir`, sglk's own, those of plugins."""
    profiles: tuple[Path, ...]
    """Hold `<chip>/<model>.yaml`: `./profiles` of the caller, then the shipped ones."""
    plugins: tuple[ConfFolder, ...] = ()
    """What plugins bring, those included that bring nothing after all."""

    def find(self, config_path: str) -> Path | None:
        """Return the file that `group/option` or the name of a command means, or None.

        Raises ConfigError when it is a file of plugins, and several of them bring it.
        """
        candidates = [root / f"{config_path}.yaml" for root in self.roots]
        if config_path.startswith(f"{PROFILES}/"):
            candidates += [folder.parent / f"{config_path}.yaml" for folder in self.profiles]
        found = next((file for file in candidates if file.is_file()), None)
        claimants = bringers(f"{config_path}.yaml", self.plugins)
        if len(claimants) > 1 and found is not None and claimants[0].path in found.parents:
            raise ConfigError(clash_text(f"{config_path}.yaml", claimants))
        return found

    def warnings(self) -> list[str]:
        """Return one line for each plugin whose configuration is not what it promises."""
        return self._refusals(folder for folder in self.plugins if allow_list.is_allowed(folder.plugin))

    def refusals(self) -> list[str]:
        """Return the same and a line for each that `SGLK_PLUGINS` leaves out: what an unknown name may go back to."""
        return self._refusals(self.plugins)

    def _refusals(self, folders: Iterable[ConfFolder]) -> list[str]:
        return [
            f"plugin {folder.plugin.name!r} ({folder.plugin.origin}) brings no configuration: {folder.refusal}"
            for folder in folders
            if folder.refusal is not None
        ]

    def options(self, group: str) -> list[str]:
        """Return the options of one group; those of `profiles` read `chip/model`."""
        folders = [root / group for root in self.roots]
        if group == PROFILES:
            folders += self.profiles
        found = {
            file.relative_to(folder).with_suffix("").as_posix()
            for folder in folders
            for file in folder.rglob("*.yaml")
            if not file.name.startswith(".")
        }
        return sorted(found)


def search_path(config_dir: str | Path | None = None) -> SearchPath:
    """Return the folders in force for a caller in the current directory.

    `config_dir` comes before sglk's own files, so a file of the same name there replaces the shipped one; folders of
    plugins come last and can only add. Nothing but `profiles/` is read from the current directory.
    """
    own = conf_dir()
    plugins = tuple(conf_folders())
    roots = [*dict.fromkeys(folder.path for folder in plugins if folder.path is not None)]
    if config_dir is None:
        roots = [own, *roots]
    else:
        folder = expanded(str(config_dir)).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {str(config_dir)!r} is not a folder; name one that holds <group>/*.yaml")
        roots = [folder, own, *roots]
    profiles = dict.fromkeys(folder for folder in (*_own_profiles(), profiles_dir()) if folder.is_dir())
    return SearchPath(tuple(roots), tuple(profiles), plugins)


def _own_profiles() -> list[Path]:
    try:
        return [Path.cwd() / PROFILES]
    except FileNotFoundError:  # the current directory was removed
        return []


def unreadable(error: OSError | ValueError, search: SearchPath) -> ConfigError:
    """Return an error that names the file behind one in which Hydra names none: not UTF-8, or with a bad header."""
    files = [file for folder in (*search.roots, *search.profiles) for file in sorted(folder.rglob("*.yaml"))]
    if isinstance(error, OSError):
        return ConfigError(f"cannot read {error.filename}: {error.strerror}")
    if isinstance(error, UnicodeDecodeError):
        culprits = [file for file in files if file.read_bytes() == error.object]
        return ConfigError(f"{' or '.join(map(str, culprits)) or 'a file'} is not UTF-8 text: {error.reason}")
    named = re.search(r"[Dd]efaults list in '([^']+)'", str(error))
    if named and (file := search.find(named[1])):
        return ConfigError(f"{file}: {str(error).replace(f' in {named[1]!r}', '')}")
    culprits = [file for file in files if _has_bad_header(file)]
    return ConfigError(f"{' or '.join(map(str, culprits)) or 'a file'}: {error}")


def _has_bad_header(file: Path) -> bool:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(len(line.lstrip("# ").split()) != 2 for line in lines if line.replace(" ", "").startswith("#@"))
