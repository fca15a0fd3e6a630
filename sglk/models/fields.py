"""Typed look-ups in what a model file says, so that every complaint names the file and the key."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglk.errors import ModelLoadError

MOST = 2**31 - 1
"""Largest integer that a model file may say; every size of every published model is far below."""

MOST_LAYERS = 2**12
MOST_EXPERTS = 2**14
MOST_HEAD_WIDTH = 2**14
"""Many times what any published model has; beyond lies a damaged file, whose reading would not end."""

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Fields:
    """A mapping read from `origin` (a file); a JSON null counts as absent."""

    values: Mapping[str, Any]
    origin: str

    def has(self, key: str) -> bool:
        """Return whether `key` is given and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """Return an integer from 1 to `most`; `default` where the key is absent, an error where there is no default."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, "a positive integer")
        if value > most:
            raise self.wrong(key, f"a positive integer of at most {most}")
        return value

    def count(self, key: str, default: int) -> int:
        """Return an integer from 0 up; `default` where the key is absent."""
        value = self._get(key, default)
        return 0 if value == 0 and not isinstance(value, bool) else self.integer(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number; `default` where the key is absent, an error where there is no default."""
        value = self._get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(key, "a positive number")
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(key, "a positive number") from None

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; `default` where the key is absent."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; `default` where the key is absent, an error where there is no default."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def token_ids(self, key: str) -> frozenset[int]:
        """Return a token id or a list of them as a set; empty where the key is absent."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
            raise self.wrong(key, "a token id or a list of them")
        return frozenset(ids)

    def wrong(self, key: str, expected: str) -> ModelLoadError:
        """Return the complaint that the value of `key` is not what it must be."""
        shown = repr(self.values.get(key))
        if len(shown) > _SHOWN_CHARACTERS:
            shown = f"{shown[:_SHOWN_CHARACTERS]}..."
        return ModelLoadError(f"{self.origin}: `{key}` must be {expected}, not {shown}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise ModelLoadError(f"{self.origin}: `{key}` is missing")
        return default if value is None else value


def read_json(file: Path) -> Fields:
    """Return the object in a JSON file; raises ModelLoadError where the file is unreadable or holds something else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelLoadError(f"{file} is not valid JSON: {error}; download it again") from error
    except RecursionError:
        raise ModelLoadError(f"{file} is nested too deeply to be read; download it again") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} must hold a JSON object, not {type(value).__name__}")
    return Fields(value, str(file))


def read_json_if_present(file: Path) -> Fields:
    """Return the object in a JSON file, or no fields where there is no such file."""
    return read_json(file) if file.exists() else Fields({}, str(file))
