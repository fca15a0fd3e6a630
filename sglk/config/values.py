"""Values that are missing or of the wrong type: what is wrong, in the user's words, instead of Hydra's."""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
)

from sglk.config.check_numbers import MAX_INTEGER
from sglk.config.keys import keys, lookup
from sglk.config.search_path import SearchPath
from sglk.config.sources import Layer, as_yaml, raw_value
from sglk.errors import ConfigError, nearest

_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")


def require_values(tree: DictConfig, root: type, overrides: Sequence[str], layers: Sequence[Layer]) -> None:
    """Raise ConfigError naming every missing value, or else every interpolation that gives no fitting value."""
    missing: list[str] = []
    problems: list[str] = []
    raw_tree = OmegaConf.to_container(tree, resolve=False)
    for path, raw, parent, name in _leaves(raw_tree, tree, ""):
        if raw == "???":
            missing.append(path)
        elif (
            isinstance(raw, str) and "${" in raw and (problem := _interpolation_problem(path, raw, parent, name, root))
        ):
            problems.append(problem)
    problems += _odd_values(root, layers)
    # A `???` in a file above a value is a demand too, though OmegaConf keeps the value below it.
    missing += [path for path in _demanded(overrides, layers) if path not in missing]
    if missing:
        raise ConfigError(f"no value for {', '.join(missing)}; write {' '.join(f'{path}=VALUE' for path in missing)}")
    if problems:
        raise ConfigError("; ".join(problems))


def _demanded(overrides: Sequence[str], layers: Sequence[Layer]) -> Iterator[str]:
    for layer in layers:
        for path, value, *_ in _leaves(layer.values, None, ""):
            if value == "???" and raw_value(path, overrides, layers) == ("???", str(layer.file)):
                yield path


def is_no_truth(value: object) -> bool:
    """Return whether `value` is a number that OmegaConf would take for true, though nobody means it so."""
    return isinstance(value, int | float) and value not in (0, 1)


def _odd_values(root: type, layers: Sequence[Layer]) -> Iterator[str]:
    """Name what OmegaConf takes although it is not of the type: numbers for truths, lists for texts of a mapping."""
    for layer in layers:
        for path, value in _nodes(layer.values, ""):
            known = lookup(root, path)
            if known is None:
                continue
            if (known.type is bool and is_no_truth(value)) or (known.type is str and isinstance(value, dict | list)):
                yield f"{path}={value} in {layer.file} is not {known.wanted}"


def _nodes(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        yield path, value
        if isinstance(value, dict):
            yield from _nodes(value, path)


def _leaves(raw: Any, node: Any, prefix: str) -> Iterator[tuple[str, Any, Any, Any]]:
    if not isinstance(raw, dict | list):
        return
    for name, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
        path = f"{prefix}.{name}" if prefix else str(name)
        if not isinstance(value, dict | list):
            yield path, value, node, name
        else:
            inner = node._get_node(name) if isinstance(node, DictConfig | ListConfig) else None
            yield from _leaves(value, inner, path)


def _interpolation_problem(path: str, raw: str, parent: Any, name: Any, root: type) -> str | None:
    try:
        parent[name]
    except InterpolationToMissingValueError:
        return None  # the value it points to is listed itself
    except OmegaConfBaseException as error:
        known = lookup(root, path)
        wanted = known.wanted if known else "a value"
        variables = _ENVIRONMENT.findall(raw)
        unset = [variable for variable in variables if variable not in os.environ]
        if unset:
            return (
                f"environment variable {unset[0]} is not set, and {path} ({raw}) needs it for {wanted};"
                f" set it or write ${{oc.env:{unset[0]},DEFAULT}}"
            )
        if variables:
            variable = variables[0]
            return f"environment variable {variable}={os.environ[variable]!r} gives {path}, which wants {wanted}"
        return f"{path}={raw}: {_first_line(error)}; {path} wants {wanted}"
    return None


def explain(
    error: Exception, root: type, overrides: Sequence[str], layers: Sequence[Layer], search: SearchPath
) -> ConfigError:
    """Return one line for an error of Hydra or OmegaConf."""
    cause = _omegaconf_error(error)
    place = _place(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = str(error.missing_cfg_file)
        options = error.options or search.options(missing.strip("/").rpartition("/")[0])
        hint = nearest(missing.rpartition("/")[2], options) or ""
        return ConfigError(f"{place}{missing!r} does not exist{hint or ';'} options: {', '.join(options)}")
    if cause is None:
        return ConfigError(f"{place}{_first_line(error).removeprefix(place)}")
    path = str(cause.full_key or cause.key or "")
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and lookup(root, path) is None:
        file = next((f" in {layer.file}" for layer in reversed(layers) if place and _is_at(layer, place)), "")
        return ConfigError(f"unknown key {path!r}{file}{_key_hint(path, root)}")
    return ConfigError(_type_message(path, cause, root, overrides, layers))


def _key_hint(path: str, root: type) -> str:
    head, _, rest = path.partition(".")
    if head == rest.partition(".")[0]:
        return f"; a file with a `{head}:` node of its own begins with `# @package _global_`"
    parent, _, _ = path.rpartition(".")
    entry = lookup(root, parent)
    # Entries of a mapping have keys that the list of all keys cannot have.
    inner = [f"{parent}.{name}" for name in keys(entry.type)] if entry is not None and entry.has_fields else []
    return nearest(path, [*keys(root), *inner]) or "; see --help for all keys"


def _type_message(
    path: str, cause: OmegaConfBaseException, root: type, overrides: Sequence[str], layers: Sequence[Layer]
) -> str:
    if isinstance(cause, GrammarParseError):
        return f"the value of {path} is not a sound interpolation; write ${{oc.env:NAME}} or ${{another.key}}"
    if not path and (wrong := _no_mapping(root, layers)):
        return wrong
    known = lookup(root, path)
    given = raw_value(path, overrides, layers)
    if given is None or known is None:
        return f"{path}: {_first_line(cause)}" if path else _first_line(cause)
    value, where = given
    origin = "" if where == "command line" else f" in {where}"
    if variables := _ENVIRONMENT.findall(value):
        variable = variables[0]
        return (
            f"environment variable {variable}={os.environ.get(variable)!r} gives {path}{origin},"
            f" which wants {known.wanted}"
        )
    return f"{path}={value}{origin} is not {known.wanted}{_example(value, known.type)}"


def _no_mapping(root: type, layers: Sequence[Layer]) -> str | None:
    """Name the file that gives a plain value to a node, of which OmegaConf says neither node nor file."""
    for layer in reversed(layers):
        for path, value in _nodes(layer.values, ""):
            known = lookup(root, path)
            if known is None or not known.is_mapping or isinstance(value, dict) or "${" in str(value):
                continue
            return f"{path}={as_yaml(value)} in {layer.file} is not a mapping"
    return None


def _example(value: str, wanted: Any) -> str:
    """What was probably meant."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        return ""
    if wanted is int and number.is_integer() and abs(number) <= MAX_INTEGER and "%" not in value:
        return f"; write {int(number)}"
    return f"; write {number / 100:g}" if value.endswith("%") and wanted is float else ""


def _omegaconf_error(error: BaseException | None) -> OmegaConfBaseException | None:
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            return error
        error = error.__cause__ or error.__context__
    return None


def _place(error: Exception) -> str:
    found = re.match(r"In '([^']+)': ", str(error))
    return found.group(0) if found else ""


def _is_at(layer: Layer, place: str) -> bool:
    return f"'{layer.group}/{layer.option}'" in place or (not layer.group and f"'{layer.option}'" in place)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1]) if isinstance(error, OmegaConfBaseException) else " ".join(lines)
