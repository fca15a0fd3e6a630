"""Checkpoints that stack the weights of all experts of a layer into one tensor, seen expert by expert.

Letters: X experts, F width of an expert, E hidden width.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.errors import ModelLoadError
from sglk.models.experts import ExpertNames
from sglk.models.weights import WeightSource

_BLOCK = re.compile(r"(.+)\.mlp\.(gate\.weight|experts\.gate_up_proj|experts\.down_proj)")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where in a stored tensor one tensor of the model is."""

    stored: str
    expert: int | None = None
    """None = the whole tensor, under another name."""
    half: Literal[0, 1] | None = None
    """Of the expert's rows; None = all of them."""


class StackedExperts:
    """A WeightSource over one that holds `{layer}.mlp.experts.gate_up_proj` [X, 2F, E] and `.down_proj` [X, E, F].

    This is how transformers 5 keeps experts in memory and, where it is asked to, on disk, for every family under the
    same names.
    """

    def __init__(self, source: WeightSource, experts: int, names: ExpertNames) -> None:
        self._source = source
        self._experts = experts
        self._pieces = {ours: piece for name in source.names() for ours, piece in _pieces(name, experts, names)}
        self._last: tuple[str, torch.Tensor] | None = None

    def __str__(self) -> str:
        return str(self._source)

    def names(self) -> Iterable[str]:
        """Return the names of all tensors, those of each expert in place of the stacks."""
        return self._pieces.keys()

    def get(self, name: str) -> torch.Tensor | QuantisedMatrix:
        """Return one tensor as it is stored."""
        piece = self._pieces.get(name)
        if piece is None:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        if piece.expert is None:
            return self._source.get(piece.stored)
        one = self._stack(piece.stored)[piece.expert]
        return one if piece.half is None else one.chunk(2)[piece.half]

    def _stack(self, stored: str) -> torch.Tensor:
        """Return a stack, which is read once for all of its experts."""
        if self._last is None or self._last[0] != stored:
            stack = full_precision(self._source.get(stored))
            if stack.ndim != 3 or len(stack) != self._experts:
                raise ModelLoadError(
                    f"{self}: tensor {stored!r} has shape {list(stack.shape)}, expected {self._experts} experts of "
                    "two dimensions each"
                )
            self._last = (stored, stack)
        return self._last[1]


def with_experts_apart(source: WeightSource, experts: int, names: ExpertNames) -> WeightSource:
    """Return `source`, seen through StackedExperts where it stacks its experts."""
    stacked = any(name.endswith(".mlp.experts.gate_up_proj") for name in source.names())
    return StackedExperts(source, experts, names) if stacked else source


def _pieces(name: str, experts: int, names: ExpertNames) -> Iterable[tuple[str, _Piece]]:
    match = _BLOCK.fullmatch(name)
    if match is None:
        yield name, _Piece(name)
        return
    block, kind = f"{match[1]}.{names.block}", match[2]
    if kind == "gate.weight":
        yield f"{block}.{kind}", _Piece(name)
        return
    for expert in range(experts):
        one = f"{block}.experts.{expert}"
        if kind == "experts.down_proj":
            yield f"{one}.{names.down}.weight", _Piece(name, expert)
        else:
            yield f"{one}.{names.gate}.weight", _Piece(name, expert, 0)
            yield f"{one}.{names.up}.weight", _Piece(name, expert, 1)
