"""What every language model has: a forward pass to logits, and weights that are read strictly."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from sglk.attention.base import AttentionBackend
from sglk.backends.base import DeviceBackend
from sglk.backends.host_memory import return_freed_memory
from sglk.backends.quantised import full_precision
from sglk.errors import ModelLoadError
from sglk.layers.product_weight import ProductWeight
from sglk.layers.weights import BitsSource, LayerContext, Shape
from sglk.models.experts import ExpertNames
from sglk.models.spec import ModelSpec
from sglk.models.split import PartWeights, RankPart, gathers
from sglk.models.stacked_experts import with_experts_apart
from sglk.models.weights import WeightSource
from sglk.parallel.exchange import Exchange
from sglk.parallel.ranks import ALONE, Ranks

logger = logging.getLogger(__name__)

TIDY_SHARE = 1 / 64
"""Share of a model's numbers after which what reading them took is given back to the system."""
TIDY_NUMBERS = 2**20
"""Least numbers that it is done for."""

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


class CausalLM(ABC):
    """A decoder built from its spec; empty until `load_weights`.

    Letters: T tokens, B of them whose logits are wanted, E hidden width, V vocabulary.
    """

    expert_names: ClassVar[ExpertNames] = ExpertNames()
    """What the family calls its experts, where it has any."""

    def __init__(self, spec: ModelSpec, backend: DeviceBackend, dtype: torch.dtype, ranks: Ranks = ALONE) -> None:
        """`spec` describes what one of `ranks` has: see `RankPart`."""
        self.spec = spec
        self.dtype = dtype
        self.ranks = ranks
        self.context = LayerContext(backend, dtype, [], spec.quantization, ranks, gathers(spec, ranks, backend))

    head: Callable[[torch.Tensor], torch.Tensor]
    """Turns hidden states x_BE, as `trunk` returns them, into logits_BV."""

    @abstractmethod
    def trunk(self, ids_T: torch.Tensor, positions_T: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """Return the last hidden states x_TE and fill the KV pool; `attention` has planned the step."""

    @property
    def exchanges(self) -> list[Exchange]:
        """What a forward pass brings together from all ranks, in order."""
        return self.context.exchanges

    @property
    def weights_bytes(self) -> int:
        """Device memory of the weights, in bytes; before they are loaded, what they take in the compute dtype."""
        return sum(weight.num_bytes(self.dtype) for weight in self.context.weights)

    def least_bytes(self, source: WeightSource | None) -> int:
        """Return the least that the weights may take once they are loaded from `source`: some stay in few bits."""
        if not isinstance(source, BitsSource):
            return self.weights_bytes
        return sum(
            each.least_bytes(source, self.dtype) if isinstance(each, ProductWeight) else each.num_bytes(self.dtype)
            for each in self.context.weights
        )

    def weight_shapes(self) -> dict[str, Shape]:
        """Return the tensors that a checkpoint must have, by Hugging Face name."""
        return {name: shape for weight in self.context.weights for name, shape in weight.parts}

    def load_weights(self, source: WeightSource, part: RankPart | None = None) -> None:
        """Fill the model from `source`, one tensor at a time, converting to the compute dtype.

        `source` is of the whole model, of which `part` is taken (None = all of it).
        Raises ModelLoadError where a tensor is missing, has another shape, or is a bias that this architecture would
        ignore; other tensors without a place are named in a warning.
        """
        if self.spec.moe is not None:
            source = with_experts_apart(source, self.spec.moe.num_experts, self.expert_names)
        if part is not None:
            source = PartWeights(source, part, self.weight_shapes())
        names = frozenset(source.names())
        wanted = self.weight_shapes()
        if missing := [name for name in wanted if name not in names]:
            raise ModelLoadError(f"{source}: {_count(missing)} missing: {_listed(missing)}; fetch the whole checkpoint")
        self._check_extra(source, names - wanted.keys())
        return_freed_memory()
        tidy = max(TIDY_NUMBERS, int(TIDY_SHARE * sum(map(math.prod, wanted.values()))))
        read = 0
        for weight in self.context.weights:
            weight.load(source, self.context.backend, self.dtype)
            read += sum(math.prod(shape) for _, shape in weight.parts)
            if read >= tidy:
                return_freed_memory()
                read = 0
        return_freed_memory()
        if HEAD in names and HEAD not in wanted:
            self._compare_tied_head(source)

    def _check_extra(self, source: WeightSource, extra: frozenset[str]) -> None:
        weights = self.weight_shapes().keys()
        ignored = sorted(name for name in extra if name != HEAD and not name.endswith("rotary_emb.inv_freq"))
        biases = [
            name for name in ignored if f"{name.removesuffix('bias')}weight" in weights and name.endswith(".bias")
        ]
        # Some quantisers store a bias of zeros for every layer.
        if biases := [name for name in biases if full_precision(source.get(name)).any()]:
            raise ModelLoadError(
                f"{source}: {_count(biases)} would be ignored by {self.spec.architecture}: {_listed(biases)}; "
                "a model with these biases is not supported"
            )
        if ignored:
            logger.warning("%s: %s without a place in the model: %s", source, _count(ignored), _listed(ignored))

    def _compare_tied_head(self, source: WeightSource) -> None:
        if not torch.equal(full_precision(source.get(HEAD)), full_precision(source.get(EMBEDDING))):
            logger.warning(
                "%s: %r differs from the embedding and is ignored, because tie_word_embeddings is true", source, HEAD
            )


def _count(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' if len(names) != 1 else ''}"


def _listed(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest
