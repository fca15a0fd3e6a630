"""What work is counted from: an op's real arguments, or stand-ins for them. Needs no torch."""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

IntArray: TypeAlias = "npt.NDArray[np.int64]"

ITEM_BYTES = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per value, by the name of its dtype."""

_TORCH_NAMES = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
}


class TensorLike(Protocol):
    """A tensor, or `Shaped`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""

    @property
    def dtype(self) -> object:
        """torch's dtype, or its short name."""


class MatrixLike(Protocol):
    """A `QuantisedMatrix`, or `StoredMatrix`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    @property
    def nbytes(self) -> int:
        """Memory of values, scales and zero points as they are stored."""


class RowsLike(Protocol):
    """`PagedRows`, or `RowLens`."""

    query_lens_B: IntArray
    kv_lens_B: IntArray
    window: int | None


@dataclass(frozen=True, slots=True)
class Shaped:
    """Stands for a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """Short name, such as `bf16`."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Stands for a quantised matrix."""

    shape: tuple[int, int]
    nbytes: int


@dataclass(slots=True)
class RowLens:
    """Stands for the rows of a step."""

    query_lens_B: IntArray
    kv_lens_B: IntArray
    window: int | None = None


def dtype_of(tensor: TensorLike) -> str:
    """Return the short name of a tensor's dtype."""
    name = str(tensor.dtype)
    return _TORCH_NAMES.get(name, name.removeprefix("torch."))


def nbytes(*tensors: TensorLike | None) -> int:
    """Return the bytes of whole tensors; None has none."""
    return sum(prod(tensor.shape) * ITEM_BYTES[dtype_of(tensor)] for tensor in tensors if tensor is not None)


def item_bytes(tensor: TensorLike) -> int:
    """Return the bytes of one value."""
    return ITEM_BYTES[dtype_of(tensor)]
