"""The table of a GGUF file: its metadata and what tensors it has, without their bytes. Needs no numpy.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` library's own reader makes several numpy
arrays per string and needs seconds for a vocabulary of 50k tokens; this one reads it in some tens of milliseconds.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglk.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type to `struct` letter."""
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufLine:
    """One line of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as in torch (the file states the fastest dimension first)."""
    type: int
    """Number of its GGML type."""
    offset: int
    """Position behind `GgufTable.data_start`, bytes."""


@dataclass(frozen=True, slots=True)
class GgufTable:
    """What a file says of itself, and its bytes."""

    data: mmap.mmap
    version: int
    metadata: dict[str, Any]
    """Plain Python values."""
    lines: list[GgufLine]
    data_start: int
    """Position of the tensors' bytes."""


def read_table(path: Path, *, vocabulary: bool = True) -> GgufTable:
    """Return the table of a file; without `vocabulary` lists of texts are left empty, which takes a third of the time.

    Raises ModelLoadError where the file is not GGUF, of an unknown version, truncated or damaged.
    """
    data = _map(path)
    if data[:4] != MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file: it starts with {data[:4]!r}, not {MAGIC!r}")
    try:
        return _table(path, data, vocabulary)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError, RecursionError) as error:
        raise ModelLoadError(f"{path} is truncated or damaged ({error}); download it again") from error


def _table(path: Path, data: mmap.mmap, vocabulary: bool) -> GgufTable:
    cursor = _Cursor(data, 4, vocabulary)
    version = int(cursor.scalar("I"))
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise ModelLoadError(f"{path} is GGUF version {version}; versions {known} (little-endian) are read")
    num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_values)}
    lines = [_line(path, cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelLoadError(f"{path}: `general.alignment` must be a positive integer, not {alignment!r}")
    return GgufTable(data, version, metadata, lines, -(-cursor.position // alignment) * alignment)


def _line(path: Path, cursor: "_Cursor") -> GgufLine:
    name, num_dimensions = cursor.string(), cursor.scalar("I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ModelLoadError(f"{path}: tensor {name!r} has {num_dimensions} dimensions; the file is damaged")
    shape = tuple(reversed(cursor.scalars("Q", num_dimensions)))
    return GgufLine(name, shape, cursor.scalar("I"), cursor.scalar("Q"))


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is empty; download it again") from error


class _Cursor:
    """Reads little-endian values one after another; past the end it raises struct.error."""

    def __init__(self, data: mmap.mmap, position: int, vocabulary: bool) -> None:
        self.data = data
        self.position = position
        self._vocabulary = vocabulary

    def scalar(self, letter: str) -> Any:
        return self.scalars(letter, 1)[0]

    def scalars(self, letter: str, count: int) -> tuple[Any, ...]:
        size = count * struct.calcsize(letter)
        self._require(size)
        values = struct.unpack_from(f"<{count}{letter}", self.data, self.position)
        self.position += size
        return values

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        self._require(count * 8)
        data, position, length_at = self.data, self.position, struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            start = position + 8
            position = start + length_at(data, position)[0]
            if position > len(data):
                raise struct.error(f"a string of {position - start} bytes at byte {start} passes the end")
            texts.append(data[start:position].decode("utf-8"))
        self.position = position
        return texts

    def _past_strings(self, count: int) -> list[str]:
        self._require(count * 8)
        data, position, length_at = self.data, self.position, struct.Struct("<Q").unpack_from
        for _ in range(count):
            position += 8 + length_at(data, position)[0]
        self.position = position
        return []

    def value(self, type_: int) -> Any:
        if type_ == _STRING:
            return self.string()
        if type_ in _SCALARS:
            return self.scalar(_SCALARS[type_])
        if type_ != _ARRAY:
            raise struct.error(f"unknown value type {type_} at byte {self.position - 4}")
        item_type, count = self.scalar("I"), self.scalar("Q")
        if item_type == _STRING:
            return self.strings(count) if self._vocabulary else self._past_strings(count)
        if item_type in _SCALARS:
            return list(self.scalars(_SCALARS[item_type], count))
        self._require(count)
        return [self.value(item_type) for _ in range(count)]

    def _require(self, size: int) -> None:
        """Refuse an absurd count before memory is spent on it."""
        if size > len(self.data) - self.position:
            raise struct.error(f"{size} bytes wanted at byte {self.position}, {len(self.data) - self.position} left")
