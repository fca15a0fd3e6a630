"""Why a plugin's module did not come up: the root cause on one line, and what is usually done about it."""

import importlib.util
import json
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sglk.errors import SglkError
from sglk.plugins.plugin import CODE, Plugin

_GLIBC = re.compile(r"version [`'\"]GLIBC_(?P<needed>[\d.]+)['\"] not found")
_LIBSTDCXX = re.compile(r"version [`'\"](?:GLIBCXX|CXXABI)_[\d.]+['\"] not found")
_SYMBOL = re.compile(r"undefined symbol: (?P<symbol>\S+)")
_LIBRARY = re.compile(r"(?P<library>\S+\.so[\w.]*): cannot open shared object file")
_CONTRACT_PART = re.compile(r"(Capabilities|DeviceInfo|MemoryInfo|Finding|OpRegistry|Packing)\.\w+\(\)")
_GENERAL = "check that its libraries fit this driver, Python and torch"


def cause(error: BaseException, plugin: Plugin) -> str:
    """Return one line: what was raised, what it goes back to, and what to do."""
    root = _root(error)
    text = in_words(error) if root is error else f"{in_words(error)}; root cause: {in_words(root)}"
    return f"{text}; {_advice_on_module(root, plugin) or advice(str(root)) or _GENERAL}"


def in_words(error: BaseException) -> str:
    """Return an error on one line; those of sglk are sentences of their own."""
    text = " ".join(str(error).split())
    if isinstance(error, SglkError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def advice(message: str) -> str | None:
    """Return what to do about a message of the dynamic loader, or None where it is none."""
    for pattern, words in _ADVICE:
        if (match := pattern.search(message)) is not None:
            return words(match)
    return None


def _no_glibc(match: re.Match[str]) -> str:
    _, here = platform.libc_ver()
    return (
        f"it needs glibc {match['needed']} and this system has {here or 'another libc'}; take a newer system image, or"
        " a build of the library for this one"
    )


def _no_symbol(match: re.Match[str]) -> str:
    return (
        f"the library that should have {match['symbol']} is another version than it was built against; install the"
        f" torch, driver and SDK that it names (this Python has torch {_version('torch')})"
    )


_ADVICE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_GLIBC, _no_glibc),
    (_LIBSTDCXX, lambda _: "it needs a newer libstdc++; install one, or a build of the library for this system"),
    (_SYMBOL, _no_symbol),
    (
        _LIBRARY,
        lambda match: f"install the driver or SDK that brings {match['library']}, or add its folder to LD_LIBRARY_PATH",
    ),
)


def _advice_on_module(error: BaseException, plugin: Plugin) -> str | None:
    if isinstance(error, TypeError) and "keyword argument" in str(error):
        if (match := _CONTRACT_PART.match(str(error))) is not None:
            return f"this sglk ({_version('sglk')}) has another {match[1]}; {_fitting_versions(plugin)}"
        return "what makes a backend takes index, num_threads, fallback, deny, chip and those of backend.options"
    if plugin.source == CODE:
        return None
    missing = (error.name or "") if isinstance(error, ImportError) else ""
    top = plugin.module.partition(".")[0]
    if (hider := hiding_place(plugin)) is not None:
        return f"{str(hider)!r} hides the module of {plugin.source}; rename it, or start from another folder"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}" if error.filename else "its source"
        version = platform.python_version()
        return f"{where} may not be for Python {version}; correct it, or install a version of {plugin.source} that is"
    if missing.partition(".")[0] == "sglk" and plugin.distribution is not None:
        return f"this sglk ({_version('sglk')}) has no such part; {_fitting_versions(plugin)}"
    if isinstance(error, ModuleNotFoundError):
        if missing.partition(".")[0] != top:
            return f"install {missing} into {sys.prefix}"
        return _advice_on_files(plugin)
    if isinstance(error, AttributeError) and plugin.attribute in str(error):
        return f"the entry point wants {plugin.value!r}; correct it, or reinstall {plugin.source}"
    return None


def _fitting_versions(plugin: Plugin) -> str:
    return f"install versions of sglk and {plugin.distribution or 'the plugin'} that fit"


def _advice_on_files(plugin: Plugin) -> str:
    """What to do where metadata stands and the files that it speaks of do not."""
    if plugin.distribution is None:
        return "this installation of sglk is incomplete; reinstall sglk"
    checkout = _editable_folder(plugin.distribution)
    if checkout is not None and not checkout.exists():
        where = f"it was installed editable from {str(checkout)!r}, which is gone"
    else:
        where = "its metadata stands, its files do not"
    return f"{where}; reinstall {plugin.source}, or `pip uninstall {plugin.source}`"


def _editable_folder(distribution: str) -> Path | None:
    """The folder that an editable install points to (PEP 610)."""
    try:
        record = json.loads(metadata.distribution(distribution).read_text("direct_url.json") or "{}")
        return Path(unquote(urlsplit(record["url"]).path)) if record["dir_info"]["editable"] else None
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None


def hiding_place(plugin: Plugin) -> Path | None:
    """Return what is imported under the plugin's name in place of the files of its distribution, or None."""
    if plugin.location is None:
        return None
    top = plugin.module.partition(".")[0]
    own = {path for path in (plugin.location / top, plugin.location / f"{top}.py") if path.exists()}
    imported = _module_places(top)
    if not own or not imported or any(own & {place, *place.parents} for place in imported):
        return None
    return imported[0]


def module_path(module: str) -> Path | None:
    """Return the file that a module is found in, or the first of the folders that share its name."""
    return next(iter(_module_places(module)), None)


def _module_places(module: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    found = [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ())]
    return [Path(place).resolve() for place in found]


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _root(error: BaseException) -> BaseException:
    seen = {id(error)}
    while (below := _below(error)) is not None and id(below) not in seen:
        seen.add(id(below))
        error = below
    return error


def _below(error: BaseException) -> BaseException | None:
    # Of a group, which Python has from 3.11 on, the first tells enough.
    group: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if isinstance(group, tuple) and group and isinstance(group[0], BaseException):
        return group[0]
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
