"""The GGUF container: metadata, tensor table and raw tensor bytes of one file."""

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from sglk.errors import ModelLoadError
from sglk.models.gguf_table import GgufLine, read_table


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
        table = read_table(path)
        self.version, self.metadata, self._bytes = table.version, table.metadata, table.data
        self.tensors = {line.name: self._place(line, table.data_start) for line in table.lines}
        if len(self.tensors) < len(table.lines):
            raise ModelLoadError(f"{path} lists a tensor twice; the file is damaged")

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

    def _place(self, line: GgufLine, data_start: int) -> GgufTensor:
        name, shape, type_, start = line.name, line.shape, line.type, data_start + line.offset
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
