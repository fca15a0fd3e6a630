"""What the matrices of a model's files are stored as, and what the processor's kernels keep of that in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglk.backends.kept_kinds import FLOAT_BITS, KEPT_BITS

_FP32 = 32.0
ROWS = 64
"""Outputs of a matrix that the processor's kernels lay out are filled up to a multiple of it."""


@dataclass(frozen=True)
class StoredKinds:
    """Kinds of tensors by llama.cpp's names of them, such as `blk.0.attn_q`."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    others: str | None = None
    """Of all names that are not in the table."""

    def matrix(self, names: tuple[str, ...], outputs: int, inputs: int) -> int:
        """Return the bytes of one product, for which the named matrices are stacked."""
        return _panels(outputs, inputs, self._bits(names, {**FLOAT_BITS, **KEPT_BITS}))

    def expert(self, names: tuple[str, ...], outputs: int, inputs: int) -> int:
        """Return the bytes of the same product of one expert."""
        return _panels(outputs, inputs, self._bits(names, FLOAT_BITS))

    def _bits(self, names: tuple[str, ...], kept: Mapping[str, float]) -> float:
        """Return the bits of a number: what is stacked of several kinds is in fp32."""
        found = {kept.get(self.by_name.get(name, self.others or ""), _FP32) for name in names}
        return found.pop() if len(found) == 1 else _FP32


def _panels(outputs: int, inputs: int, bits: float) -> int:
    return int(filled(outputs, ROWS) * inputs * bits / 8)


def filled(outputs: int, rows: int) -> int:
    """Return `outputs` filled up to a multiple of `rows`."""
    return -(-outputs // rows) * rows
