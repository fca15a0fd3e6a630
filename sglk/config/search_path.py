"""Where configuration files are looked for, strongest folder first."""

import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from sglk.config.home import expanded
from sglk.errors import ConfigError
from sglk.resources import conf_dir, profiles_dir

CONF_PLUGINS = "sglk.conf"
"""Entry point group of distributions that carry a `conf/` folder: `name = package`."""

PROFILES = "profiles"


@dataclass(frozen=True)
class SearchPath:
    """Folders of configuration groups and folders of tuned profiles, each strongest first."""

    roots: tuple[Path, ...]
    """Hold `<group>/<option>.yaml`: the caller's `--config-dir`, sglk's own, those of plugins."""
    profiles: tuple[Path, ...]
    """Hold `<chip>/<model>.yaml`: `./profiles` of the caller, then the shipped ones."""

    def find(self, config_path: str) -> Path | None:
        """Return the file that `group/option` or the name of a command means, or None."""
        candidates = [root / f"{config_path}.yaml" for root in self.roots]
        if config_path.startswith(f"{PROFILES}/"):
            candidates += [folder.parent / f"{config_path}.yaml" for folder in self.profiles]
        return next((file for file in candidates if file.is_file()), None)

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
    roots = [*_plugin_folders()]
    if config_dir is None:
        roots = [own, *roots]
    else:
        folder = expanded(str(config_dir)).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {str(config_dir)!r} is not a folder; name one that holds <group>/*.yaml")
        roots = [folder, own, *roots]
    profiles = dict.fromkeys(folder for folder in (*_own_profiles(), profiles_dir()) if folder.is_dir())
    return SearchPath(tuple(roots), tuple(profiles))


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


def _plugin_folders() -> list[Path]:
    folders = []
    for entry in sorted(entry_points(group=CONF_PLUGINS), key=lambda entry: entry.name):
        spec = importlib.util.find_spec(entry.module)
        locations = (spec.submodule_search_locations or []) if spec else []
        found = [Path(location) / "conf" for location in locations if (Path(location) / "conf").is_dir()]
        if not found:
            owner = entry.dist.name if entry.dist else "?"
            raise ConfigError(
                f"plugin {entry.name!r} of distribution {owner!r} promises a `conf` folder in package"
                f" {entry.module!r}, which has none; reinstall or uninstall {owner!r}"
            )
        folders += found
    return folders
