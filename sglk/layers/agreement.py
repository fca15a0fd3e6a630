"""How ranks that have some inputs of a product each round them as one rank does that has all.

Letters: T tokens, E inputs of one rank, N ranks, O outputs.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from sglk.backends.base import Capabilities
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.schemes import LinearScheme
from sglk.layers.weights import LayerContext

SPARE = 16
"""Columns behind the inputs: as many as keep a width on the borders that the libraries of chips ask for."""


def must_agree(context: LayerContext, scheme: LinearScheme, in_features: int) -> bool:
    """Return whether a product of `in_features` inputs a rank rounds a token by a scale that all ranks share.

    Groups of inputs within a rank have scales of their own, which nobody else has a part in.
    """
    inputs = in_features * context.ranks.size
    one_scale = context.ranks.size > 1 and scheme.width(inputs) == inputs
    # A device that computes nothing has nothing to agree on.
    rounds = _rounds_activations(scheme, context.backend.capabilities) and not context.backend.simulated
    return one_scale and rounds


def _rounds_activations(scheme: LinearScheme, capabilities: Capabilities) -> bool:
    return scheme.kind == "w8a8" or (scheme.kind == "fp8" and capabilities.fp8_activations)


class Agreement:
    """The largest magnitude that any rank has of a token, put behind what each of them has.

    A token's scale is that of its largest magnitude. Whatever rounds the token finds it there, in columns for which the
    weight has zeros, so ops need not know of ranks.
    """

    def __init__(self, context: LayerContext, lines: int = 1) -> None:
        """`lines` = how many lines of inputs a token has, one for each expert that it visits."""
        self._ranks = context.ranks
        context.sum_widths.append(lines * context.ranks.size)

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return x with SPARE columns more."""
        # A sum of what the others leave 0, so that a group of processes need not know of anything but sums.
        largest_TN = x_TE.new_zeros(len(x_TE), self._ranks.size)
        largest_TN[:, self._ranks.rank] = x_TE.abs().amax(-1)
        largest_T1 = self._ranks.sum(largest_TN).amax(-1, keepdim=True)
        return torch.cat((x_TE, largest_T1.expand(-1, SPARE)), dim=-1)


def with_spare_columns(matrix: QuantisedMatrix) -> QuantisedMatrix:
    """Return an int8 or e4m3 matrix of one scale for each output with SPARE columns of zeros more."""
    assert matrix.scales_OG.shape[1] == 1
    assert matrix.zeros_OG is None
    assert matrix.order_E is None
    # Zero is zero bits in both, and few torch builds can fill up 8-bit floats.
    values = F.pad(matrix.values.view(torch.uint8), (0, SPARE)).view(matrix.values.dtype)
    return replace(matrix, values=values, group_size=values.shape[1])
