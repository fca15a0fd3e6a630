"""The GGUF container: metadata, tensor table and raw tensor bytes of one file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` library's own reader makes several numpy
arrays per string and needs seconds for a vocabulary of 50k tokens; this one reads it in some tens of milliseconds.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from sglk.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type to `struct` letter."""
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One line of the tensor table."""

    shape: tuple[int, ...]
    """Rows first, as in torch (the file states the fastest dimension first)."""
    type: GGMLQuantizationType
    start: int
    """Position in the file, bytes."""
    size: int
    """Bytes."""


class GgufFile:
    """An open GGUF file; `metadata` holds plain Python values.

    Raises ModelLoadError where the file is not GGUF, of an unknown version, truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _map(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            self._read()
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError, RecursionError) as error:
            raise ModelLoadError(f"{path} is truncated or damaged ({error}); download it again") from error

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of a tensor, one row per row of the tensor."""
        tensor = self.tensors[name]
        stored = np.frombuffer(self._bytes, np.uint8, tensor.size, tensor.start)
        return stored.reshape(*tensor.shape[:-1], -1)

    def check_readable(self, name: str) -> None:
        """Raise ModelLoadError where a tensor is of a kind that the library cannot make floats of."""
        kind = self.tensors[name].type
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has type {kind.name}, which cannot be dequantised; convert the model to "
                "F16, Q8_0, Q4_K or another type of weights"
            ) from error

    def forget(self, name: str) -> None:
        """Let the system take the memory that the bytes of a tensor were read into; they can be read again."""
        tensor = self.tensors[name]
        self._forget(tensor.start, tensor.start + tensor.size)

    def _forget(self, first: int, end: int) -> None:
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        size = end // mmap.PAGESIZE * mmap.PAGESIZE - start
        if size > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._bytes.madvise(mmap.MADV_DONTNEED, start, size)

    def forget_metadata(self, prefix: str) -> None:
        """Free the memory of the values whose keys begin with `prefix`, and what all were read into."""
        self.metadata = {key: value for key, value in self.metadata.items() if not key.startswith(prefix)}
        self._forget(0, min((tensor.start for tensor in self.tensors.values()), default=0))

    def _read(self) -> None:
        if self._bytes[:4] != MAGIC:
            raise ModelLoadError(f"{self.path} is not a GGUF file: it starts with {self._bytes[:4]!r}, not {MAGIC!r}")
        cursor = _Cursor(self._bytes, 4)
        self.version = int(cursor.scalar("I"))
        if self.version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise ModelLoadError(
                f"{self.path} is GGUF version {self.version}; versions {known} (little-endian) are read"
            )
        num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
        self.metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_values)}
        lines = [self._read_tensor_line(cursor) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelLoadError(f"{self.path}: `general.alignment` must be a positive integer, not {alignment!r}")
        data_start = -(-cursor.position // alignment) * alignment
        self.tensors = {name: self._place(name, shape, type_, data_start + at) for name, shape, type_, at in lines}
        if len(self.tensors) < num_tensors:
            raise ModelLoadError(f"{self.path} lists a tensor twice; the file is damaged")

    def _read_tensor_line(self, cursor: "_Cursor") -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = cursor.string(), cursor.scalar("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ModelLoadError(f"{self.path}: tensor {name!r} has {num_dimensions} dimensions; the file is damaged")
        shape = tuple(reversed(cursor.scalars("Q", num_dimensions)))
        return name, shape, cursor.scalar("I"), cursor.scalar("Q")

    def _place(self, name: str, shape: tuple[int, ...], type_: int, start: int) -> GgufTensor:
        if type_ not in GGMLQuantizationType.__members__.values():
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has the unknown type {type_}; a newer `gguf` may know it"
            )
        quantization = GGMLQuantizationType(type_)
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        if not all(shape):
            raise ModelLoadError(f"{self.path}: tensor {name!r} of shape {shape} is empty; the file is damaged")
        if not shape or shape[-1] % block:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} of shape {shape} does not fit {quantization.name} blocks"
            )
        size = int(np.prod(shape, dtype=object)) // block * block_bytes
        if start + size > len(self._bytes):
            raise ModelLoadError(
                f"{self.path} is truncated: tensor {name!r} ends at byte {start + size}, "
                f"the file at {len(self._bytes)}; download it again"
            )
        return GgufTensor(shape, quantization, start, size)


def shortest(value: float) -> float:
    """Return the shortest decimal of a float32, so that a stored 1e-5 reads 1e-05 and not 9.999999747e-06."""
    return float(str(np.float32(value)))


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

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data = data
        self.position = position

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

    def value(self, type_: int) -> Any:
        if type_ == _STRING:
            return self.string()
        if type_ in _SCALARS:
            return self.scalar(_SCALARS[type_])
        if type_ != _ARRAY:
            raise struct.error(f"unknown value type {type_} at byte {self.position - 4}")
        item_type, count = self.scalar("I"), self.scalar("Q")
        if item_type == _STRING:
            return self.strings(count)
        if item_type in _SCALARS:
            return list(self.scalars(_SCALARS[item_type], count))
        self._require(count)
        return [self.value(item_type) for _ in range(count)]

    def _require(self, size: int) -> None:
        """Refuse an absurd count before memory is spent on it."""
        if size > len(self.data) - self.position:
            raise struct.error(f"{size} bytes wanted at byte {self.position}, {len(self.data) - self.position} left")
