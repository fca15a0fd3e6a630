"""AWQ checkpoints (Lin et al. 2023, arXiv:2306.00978), in AutoAWQ's `gemm` layout.

Letters: E inputs, O outputs, G groups of inputs that share a scale. `qweight` int32 [E, O / 8] and `qzeros` int32
[G, O / 8] hold eight outputs a word, even ones in the lower half; `scales` [G, O].
"""

import torch

from sglk.backends.quantised import QuantisedMatrix, pack_nibbles
from sglk.models.quantised_weights import QuantisedWeights, unpack_int32

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place in its word, from the lowest bits on, of each of eight neighbouring outputs."""


class AwqWeights(QuantisedWeights):
    """Reads 4-bit weights with zero points."""

    marker = "qweight"
    tensors = frozenset({"qweight", "qzeros", "scales"})

    def matrix(self, layer: str) -> QuantisedMatrix:
        """Read one layer."""
        packed = self.words(layer, "qweight")
        inputs, outputs = packed.shape[0], packed.shape[1] * 8
        group_size = self.config.scheme.width(inputs)
        groups = -(-inputs // group_size)
        return QuantisedMatrix(
            pack_nibbles(outputs_in_order(packed).t()),
            self.scales(layer, "scales", (groups, outputs)).t().contiguous(),
            group_size,
            outputs_in_order(self.words(layer, "qzeros", (groups, outputs // 8))).t().contiguous(),
        )


def outputs_in_order(packed: torch.Tensor) -> torch.Tensor:
    """Return the values of [N, O / 8] words as uint8 [N, O]."""
    values_NO8 = unpack_int32(packed, 4, 1).view(len(packed), -1, 8)
    return values_NO8[:, :, _PLACES].flatten(1)
