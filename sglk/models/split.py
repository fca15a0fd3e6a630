"""One rank's part of a model that is split over several: its numbers, and its share of every tensor.

Attention goes by heads and feed-forward blocks by their inner width. Of the projection out of a block a rank has some
outputs, with all of their inputs, where the ranks bring those together; else the inputs that it computes itself, and
the block is a sum over the ranks (Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3). All else is in every
part.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.few_bits import FewBits
from sglk.backends.quantised import QuantisedMatrix
from sglk.errors import ConfigError, ModelLoadError
from sglk.layers.quantised_linear import QUANTISERS
from sglk.layers.weights import FewBitsSource, Shape, read_part
from sglk.models.matrix_columns import columns, obstacle
from sglk.models.part import can_be_summed, part_of_spec, split_sizes
from sglk.models.spec import ModelSpec
from sglk.models.weights import WeightSource
from sglk.parallel.ranks import Ranks, share

KV = frozenset({"k_proj", "v_proj"})
BY_OUTPUTS = KV | {"q_proj", "gate_proj", "up_proj", "w1", "w3"}
"""Projections into a block, of which each rank has some outputs."""
OUT = frozenset({"o_proj", "down_proj", "w2"})
"""Projections out of a block."""

Stored = torch.Tensor | QuantisedMatrix


@dataclass(frozen=True, slots=True)
class Cut:
    """Piece `index` of `pieces` nearly equal ones along an axis."""

    axis: int
    pieces: int
    index: int


def gathers(spec: ModelSpec, ranks: Ranks, backend: DeviceBackend) -> bool:
    """Return whether `ranks` bring the inputs of projections out of a block together; `spec` is that of one part.

    They do where bits must not depend on their number, and where a matrix cannot be cut between its inputs. A simulated
    device has no bits to keep, and its time is priced for sums.
    """
    if ranks.size == 1 or backend.clock is not None:
        return False
    capabilities = backend.capabilities
    wanted = capabilities.exact_ranks if ranks.deterministic is None else ranks.deterministic
    return wanted or not can_be_summed(spec, ranks.size, capabilities.fp8_activations)


class RankPart:
    """What one of `ranks` has of the model that `whole` describes.

    Raises ConfigError, in which the model is called `name`, where it cannot be split.
    """

    def __init__(self, whole: ModelSpec, ranks: Ranks, name: str) -> None:
        problem = split_sizes(whole).problem(ranks.size, name)
        if problem is not None:
            raise ConfigError(problem)
        self.ranks = ranks
        self.name = name
        self.spec = part_of_spec(whole, ranks.size)
        self._kv_pieces = min(whole.num_key_value_heads, ranks.size)

    def cut(self, name: str, shape: Shape) -> Cut | None:
        """Return which piece of the tensor called `name` the rank has, None for all of it; `shape` is that of its part.

        Of a projection out of a block the shape tells which way it is cut.
        """
        layer, _, kind = name.rpartition(".")
        projection = layer.rpartition(".")[2]
        if projection in OUT:
            if shape[0] != self.spec.hidden_size:
                return self._cut(0, self.ranks.size)
            return self._cut(1, self.ranks.size) if kind == "weight" else None
        if projection in BY_OUTPUTS:
            return self._cut(0, self._kv_pieces if projection in KV else self.ranks.size)
        return None

    def _cut(self, axis: int, pieces: int) -> Cut | None:
        # Ranks that share a piece are neighbours, as the query heads that share a key-value head are.
        return Cut(axis, pieces, self.ranks.rank * pieces // self.ranks.size) if pieces > 1 else None

    def whole_shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape in the checkpoint of a tensor that has `shape` in this part."""
        cut = self.cut(name, shape)
        if cut is None:
            return shape
        if cut.axis == 0 and _is_out(name):
            return (self.spec.hidden_size, *shape[1:])
        return tuple(n * cut.pieces if axis == cut.axis else n for axis, n in enumerate(shape))

    def whole_shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the same for all tensors of a model."""
        return {name: self.whole_shape(name, shape) for name, shape in shapes.items()}


class PartWeights:
    """A WeightSource of one part, over a source of the whole model; `shapes` are those of the part's tensors."""

    def __init__(self, source: WeightSource, part: RankPart, shapes: Mapping[str, Shape]) -> None:
        self._source = source
        self._part = part
        self._shapes = shapes

    def __str__(self) -> str:
        return str(self._source)

    def names(self) -> Iterable[str]:
        """Return the names of all tensors of the whole model."""
        return self._source.names()

    def get(self, name: str) -> Stored:
        """Return the part's piece of one tensor; a tensor that the model does not have comes as it is stored."""
        if name not in self._shapes:
            return self._source.get(name)
        shape = self._shapes[name]
        stored = read_part(self._source, (name, self._part.whole_shape(name, shape)))
        cut = self._part.cut(name, shape)
        if cut is not None:
            return self._piece(name, self._rounded(name, stored) if cut.axis == 1 else stored, cut)
        if self._part.ranks.rank and _is_out(name) and name.endswith(".bias"):
            assert isinstance(stored, torch.Tensor)
            # Each rank adds what it has: the bias of a sum is added once.
            return torch.zeros_like(stored)
        return stored

    def few_bits(self, name: str) -> FewBits | None:
        """Return the part's piece of a tensor that is stored in few bits; see `FewBitsSource`."""
        if not isinstance(self._source, FewBitsSource) or name not in self._shapes:
            return None
        shape = self._shapes[name]
        whole, cut = self._source.few_bits(name), self._part.cut(name, shape)
        if whole is None or cut is None:
            return whole
        start, end = share(whole.shape[cut.axis], cut.index, cut.pieces)
        if cut.axis == 0:
            return whole.rows(slice(start, end))
        return None if start % whole.group_size or end % whole.group_size else whole.columns(start, end)

    def _rounded(self, name: str, stored: Stored) -> Stored:
        """Return a matrix that is quantised when it is loaded so already: inputs of all ranks may share a scale."""
        scheme = self._part.spec.quantization.of(name.removesuffix(".weight"))
        if scheme is None or not isinstance(stored, torch.Tensor):
            return stored
        return QUANTISERS[scheme.kind](stored, scheme)

    def _piece(self, name: str, stored: Stored, cut: Cut) -> Stored:
        start, end = share(stored.shape[cut.axis], cut.index, cut.pieces)
        if isinstance(stored, torch.Tensor):
            return stored.narrow(cut.axis, start, end - start)
        if cut.axis == 0:
            return stored.rows(slice(start, end))
        if reason := obstacle(stored, end - start):
            raise ModelLoadError(
                f"{self}: {name!r} is quantised in {reason}, which runtime.tp_size={cut.pieces} would cut; lower it"
            )
        return columns(stored, start, end)


def _is_out(name: str) -> bool:
    return name.rpartition(".")[0].rpartition(".")[2] in OUT
