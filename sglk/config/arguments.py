"""What users type, `key=value` words, turned into Hydra overrides that are known to be meant."""

import difflib
import sys
import typing
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from sglk.config.flags import refuse_flags
from sglk.config.keys import GROUPS, PASS_THROUGH, ROOTS, Key, keys, lookup
from sglk.config.model_argument import model_overrides
from sglk.config.profiles import NATIVE, READS_PROFILES, of_engine, profile_stem
from sglk.config.quoting import on_one_line, quoted, shell_form, unquoted
from sglk.config.search_path import PROFILES, SearchPath
from sglk.config.values import is_no_truth
from sglk.errors import ConfigError, nearest
from sglk.plugins import backend_names, unknown_backend

_TEXTS = (str, typing.Any)
"""Types of keys whose values may be any text."""

_LISTING = {"chip": "`sglk chips` lists all", "model": "`sglk models` lists all"}


def overrides_from(arguments: Sequence[str], command: str, search: SearchPath) -> list[str]:
    """Return Hydra overrides for the words a user typed after `sglk <command>`.

    Raises ConfigError for flags, grammar errors, sweeps, unknown keys and unknown options; `+` and `++` change nothing.
    """
    refuse_flags(arguments, ROOTS[command])
    parsed = [_parse(word, command) for word in arguments]
    lines = [line for override in parsed for line in _checked(override, command, search)]
    return lines + _profile_of_names(lines, command)


def _profile_of_names(lines: Sequence[str], command: str) -> list[str]:
    """Look for the profile under the names in force where they are not those of the chosen options, and engine's."""
    values = {}
    for override in OverridesParser.create().parse_overrides(list(lines)):
        values[override.key_or_group] = override.value()
    names: dict[str, str] = {key: str(values[key]) for key in ("chip.name", "model.name") if key in values}
    engine = str(values.get("engine.name", values.get("engine", NATIVE)))
    if (not names and engine == NATIVE) or PROFILES in values or command not in READS_PROFILES:
        return []
    stems = [profile_stem(names[f"{g}.name"]) if f"{g}.name" in names else f"${{{g}}}" for g in ("chip", "model")]
    return [quoted(PROFILES, of_engine("/".join(stems), engine))]


def _parse(word: str, command: str) -> Override:
    key, equals, value = word.partition("=")
    if word.startswith("~"):
        raise ConfigError(f"{word!r} deletes, which sglk does not do; write profiles=none or give the key a value")
    if not equals:
        raise ConfigError(f"{word!r} is not of the form key=value{_meaning(word, command)}")
    try:
        override = OverridesParser.create().parse_override(on_one_line(word) if value[:1] in ("[", "{") else word)
    except ValueError:  # Python reads no integer of thousands of digits
        raise ConfigError(f"the value of {key} has a number with too many digits, {len(value)} characters") from None
    except HydraException:
        if not _is_path_of_words(key.lstrip("+")):
            raise ConfigError(
                f"{key!r} in {word!r} is not the name of a setting{_did_you_mean(key.lstrip('+'), command)}"
            ) from None
        _require_known(key.lstrip("+"), command)
        if (typed := _of_type(key.lstrip("+"), command)) is not None:
            raise ConfigError(f"{word!r} is not {typed.wanted}{_list_form(key, typed)}") from None
        raise ConfigError(
            f"the value of {word!r} has characters that need quotes; type {shell_form(key, unquoted(value))}"
        ) from None
    if override.is_sweep_override():
        raise ConfigError(_sweep_message(word, command))
    return override


def _sweep_message(word: str, command: str) -> str:
    key, _, value = word.partition("=")
    typed = _of_type(key, command)
    if typed is not None and typing.get_origin(typed.type) is list:
        return f"{word!r} gives several values; type {key}=[{value}] for a list"
    if key in GROUPS[command] and key != "model":
        return f"{word!r} gives several values; choose one of them"
    message = f"{word!r} gives several values; "
    message += "choose one of them" if typed else f"type {shell_form(key, unquoted(value))} if it is one"
    if command == "tune" and key.startswith("runtime."):
        message += f", or search.space.{key}=[{value}] to search over them"
    return message


def _of_type(key: str, command: str) -> Key | None:
    """Return the setting if its values are more than plain text."""
    known = None if key in GROUPS[command] else lookup(ROOTS[command], key)
    return None if known is None or known.type in _TEXTS else known


def _list_form(key: str, known: Key) -> str:
    return f"; type {key}=[A,B]" if typing.get_origin(known.type) is list else ""


def _is_path_of_words(key: str) -> bool:
    return all(part.replace("-", "_").isidentifier() for part in key.split("."))


def _meaning(word: str, command: str) -> str:
    """What a lone word may have been meant to be."""
    root = ROOTS[command]
    if lookup(root, word) is not None or word in GROUPS[command]:
        return f"; write {word}=VALUE"
    return _did_you_mean(word, command)


def _checked(override: Override, command: str, search: SearchPath) -> list[str]:
    line = str(override.input_line).lstrip("+")
    key = override.key_or_group
    raw = line.partition("=")[2]
    if override.package is not None:
        raise ConfigError(f"{line!r} moves a group to another place, which sglk does not do; write {key}={raw}")
    if key in GROUPS[command] and not isinstance(override.value(), dict):
        return _choice(key, override.value(), raw, command, search)
    return [_setting(key, override, raw, command)]


def _choice(group: str, value: object, raw: str, command: str, search: SearchPath) -> list[str]:
    option = raw if isinstance(value, int | float) else value
    if not isinstance(option, str) or not option:
        raise ConfigError(f"{group}={raw} is not the name of an option{_options_text(group, '', search)}")
    if option in search.options(group):
        return [quoted(group, option)]
    if group == "model" and (found := model_overrides(option)):
        return found
    if group == "backend" and option in backend_names():
        return ["backend=auto", quoted("backend.name", option)]
    if group == "backend":
        raise ConfigError(f"{group}={option} is unknown: {unknown_backend(option, search.options(group))}")
    problems = "".join(f"; {line}" for line in search.refusals())
    raise ConfigError(f"{group}={option} is unknown{_options_text(group, option, search)}{problems}")


def _options_text(group: str, option: str, search: SearchPath) -> str:
    options = search.options(group)
    hint = nearest(option, options) if option else ""
    if group == "model" and Path(option).exists() and option:
        hint = f"; did you mean the local model={shell_form('model', './' + option).partition('=')[2]}?"
    if group == PROFILES:
        places = ", ".join(str(folder) for folder in search.profiles)
        return f"{hint or ''}; searched {places}; found {', '.join(options)}"
    if group == "chip" and option and not hint:
        return f"; {_LISTING[group]}; one of a plugin needs the plugin's package in {sys.prefix}"
    return f"{hint}{'' if hint.endswith('?') else ';'} {_LISTING.get(group) or 'options: ' + ', '.join(options)}"


def _setting(key: str, override: Override, raw: str, command: str) -> str:
    known = lookup(ROOTS[command], key)
    if _is_of_profile_files(key):
        raise ConfigError(
            f"{key!r} is read from profile files; write profiles=chip/model or profiles=none to choose one"
        )
    if key == "search.space" and override.value() == {}:
        # Mappings are merged, so an empty one takes nothing away.
        raise ConfigError(f"{key}={raw} changes nothing; write search=custom and the candidates of your own space")
    if key.startswith("search.space.") and known is not None:
        if not isinstance(override.value(), list):
            raise ConfigError(f"{key}={raw} is not a list of candidates; type {key}=[A,B]")
        # Names of the space contain dots, which a path of the grammar would split.
        return f"++search.space={{{key.removeprefix('search.space.')}:{raw}}}"
    if any(key.startswith(f"{node}.") for node in PASS_THROUGH):
        return f"++{key}={raw}"
    _require_known(key, command)
    assert known is not None
    if known.type is bool and is_no_truth(override.value()):
        raise ConfigError(f"{key}={raw} is not {known.wanted}")
    if known.type is str and override.value() is not None and not isinstance(override.value(), str):
        # Text that looks like a number or a truth value stays as it was typed: `1e5` is not `100000.0`.
        return quoted(key, raw) if not isinstance(override.value(), dict | list) else f"{key}={raw}"
    if key not in keys(ROOTS[command]) and is_dataclass(known.type) and not isinstance(override.value(), dict):
        fields = ", ".join(keys(typing.cast(type, known.type)))
        raise ConfigError(f"{key}={raw} is not a mapping; it has the keys {fields}")
    return _entry(key, raw, ROOTS[command])


def _entry(key: str, raw: str, root: type) -> str:
    """Return the override of a key that may be an entry of a mapping which no file has."""
    known = keys(root)
    if key in known:
        return f"++{key}={raw}" if typing.get_origin(known[key].type) is dict else f"{key}={raw}"
    node = next(path for path in known if key.startswith(f"{path}.") and typing.get_origin(known[path].type) is dict)
    # OmegaConf makes no entry of a dataclass for a path into it, but does for a mapping.
    for name in reversed(key.removeprefix(f"{node}.").split(".")):
        raw = f"{{{name}:{raw}}}"
    return f"++{node}={raw}"


def _is_of_profile_files(key: str) -> bool:
    return key == "profile" or key.startswith("profile.")


def _require_known(key: str, command: str) -> None:
    passes = any(key.startswith(f"{node}.") for node in PASS_THROUGH)
    if not passes and key not in GROUPS[command] and lookup(ROOTS[command], key) is None:
        raise ConfigError(f"unknown key {key!r}{_did_you_mean(key, command)}")


def _did_you_mean(word: str, command: str) -> str:
    known = [path for path in (*keys(ROOTS[command]), *GROUPS[command]) if not _is_of_profile_files(path)]
    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.75):
        return f"; did you mean {close[0]!r}?"
    owners = [name for name, root in ROOTS.items() if word in GROUPS[name] or lookup(root, word) is not None]
    if owners:
        return f" for `sglk {command}`; it belongs to {', '.join(f'`sglk {name}`' for name in owners)}"
    tails: dict[str, str] = {}
    for path in known:
        tails.setdefault(path.rpartition(".")[2], path)
    tail = difflib.get_close_matches(word.rpartition(".")[2], tails, n=1, cutoff=0.75)
    if tail:
        return f"; did you mean {tails[tail[0]]!r}?"
    return "; see --help for all keys"
