"""Configuration that plugins bring: the `conf/` folder beside a package, found without importing the package."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglk.plugins import allow_list
from sglk.plugins.causes import in_words
from sglk.plugins.installed import installed_plugins
from sglk.plugins.plugin import CONF, Plugin


@dataclass(frozen=True)
class ConfFolder:
    """What one `sglk.conf` entry point leads to: a folder, or the reason why there is none."""

    plugin: Plugin
    path: Path | None
    refusal: str | None = None

    def holds(self, file: str) -> bool:
        """Return whether the folder has `file`, such as `chip/name.yaml`."""
        return self.path is not None and (self.path / file).is_file()


def conf_folders() -> list[ConfFolder]:
    """Return the folders that installed distributions bring, by the name of their entry points."""
    return [_folder(plugin) for plugin in installed_plugins(CONF)]


def bringers(file: str, folders: Sequence[ConfFolder]) -> list[ConfFolder]:
    """Return those of `folders` that have `file`, such as `chip/name.yaml`; two entry points to one folder are one."""
    found = {folder.path: folder for folder in reversed(folders) if folder.holds(file)}
    return [*reversed(found.values())]


def clashes(folders: Sequence[ConfFolder]) -> dict[str, list[ConfFolder]]:
    """Return every file that several of `folders` bring, and who brings it."""
    files = {
        path.relative_to(folder.path).as_posix()
        for folder in folders
        if folder.path is not None
        for path in folder.path.rglob("*.yaml")
    }
    found = {file: bringers(file, folders) for file in sorted(files)}
    return {file: several for file, several in found.items() if len(several) > 1}


def clash_text(file: str, bringers: Sequence[ConfFolder]) -> str:
    """Return what to tell of one file that several distributions bring."""
    sources = list(dict.fromkeys(folder.plugin.source for folder in bringers))
    return (
        f"{' and '.join(folder.plugin.origin for folder in bringers)} both bring {file}; uninstall"
        f" {' or '.join(sources)}, or leave it out of {allow_list.VARIABLE}"
    )


def _folder(plugin: Plugin) -> ConfFolder:
    refusal = plugin.flaw() or allow_list.refusal(plugin)
    if refusal is not None:
        return ConfFolder(plugin, None, refusal)
    top, *below = plugin.module.split(".")
    try:
        # The top package alone: to find one inside of it, Python would import it.
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        return ConfFolder(plugin, None, f"its package {plugin.module!r} cannot be looked for: {in_words(error)}")
    places = (spec.submodule_search_locations or []) if spec is not None else []
    found = next((path for place in places if (path := Path(place, *below, "conf")).is_dir()), None)
    archive = next((folder for place in places for folder in Path(place).parents if folder.is_file()), None)
    if found is None and archive is not None:
        way_out = f"`pip install` {plugin.source!r}, which unpacks it"
        return ConfFolder(plugin, None, f"its package lies in {str(archive)!r}, of which no files are read; {way_out}")
    if found is None:
        promise = f"it promises a `conf` folder in package {plugin.module!r}, which has none"
        return ConfFolder(plugin, None, f"{promise}; reinstall or uninstall {plugin.source!r}")
    return ConfFolder(plugin, found.resolve())
