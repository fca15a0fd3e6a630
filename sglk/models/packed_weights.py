"""compressed-tensors' pack-quantized layout.

Letters: E inputs, O outputs, G groups of inputs that share a scale. `weight_packed` int32 [O, E * bits / 32], lowest
bits first, `weight_scale` [O, G], `weight_zero_point` int32 [O * bits / 32, G], `weight_g_idx` [E], `weight_shape` [2].
Values are stored plus half of their range.
"""

import torch

from sglk.backends.quantised import QuantisedMatrix, pack_nibbles
from sglk.backends.schemes import LinearScheme
from sglk.models.quantised_weights import GroupOrder, QuantisedWeights, signed, unpack_int32


class PackedWeights(QuantisedWeights):
    """Reads int4 and int8 weights, with and without zero points and activation order."""

    marker = "weight_packed"
    tensors = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"})

    def scheme(self, layer: str) -> LinearScheme:
        """Return the scheme; layers of one order of columns may run as one product."""
        if not self._says_groups(layer):
            return self.config.scheme
        return self._order(layer, self.part(layer, "weight_g_idx").numel()).scheme(self.config.scheme)

    def matrix(self, layer: str) -> QuantisedMatrix:
        """Read one layer, columns brought into the order of their groups."""
        scheme = self.config.scheme
        bits = 4 if scheme.kind == "w4a16" else 8
        packed = self.words(layer, "weight_packed")
        outputs, inputs = self._shape(layer, packed, bits)
        group_size, order = scheme.width(inputs), self._order(layer, inputs)
        groups = -(-inputs // group_size)
        values_OE = order.in_order(unpack_int32(packed, bits, 1)[:, :inputs])
        scales_OG = self.scales(layer, "weight_scale", (outputs, groups))
        if bits == 8:
            return QuantisedMatrix(signed(values_OE), scales_OG, group_size, None, order.order_E)
        zeros_OG = None
        if not scheme.symmetric:
            zeros = self.words(layer, "weight_zero_point", (-(-outputs * bits // 32), groups))
            zeros_OG = unpack_int32(zeros, bits, 0)[:outputs].contiguous()
        return QuantisedMatrix(pack_nibbles(values_OE), scales_OG, group_size, zeros_OG, order.order_E)

    def _shape(self, layer: str, packed: torch.Tensor, bits: int) -> tuple[int, int]:
        """Return outputs and inputs; the last word of an output may be filled up."""
        stored = self.part(layer, "weight_shape", (2,))
        outputs, inputs = (int(size) for size in stored.tolist())
        if tuple(packed.shape) != (outputs, -(-inputs * bits // 32)):
            raise self.misfit(layer, "weight_packed", packed, f"{bits}-bit values for `weight_shape` {stored.tolist()}")
        return outputs, inputs

    def _order(self, layer: str, inputs: int) -> GroupOrder:
        group_size = self.config.scheme.width(inputs)
        if not self._says_groups(layer):
            return GroupOrder(torch.arange(inputs) // group_size, group_size, layer)
        origin = f"{self}: tensor {f'{layer}.weight_g_idx'!r}"
        return GroupOrder(self.part(layer, "weight_g_idx", (inputs,)), group_size, origin)

    def _says_groups(self, layer: str) -> bool:
        return self.config.reordered or self.has(layer, "weight_g_idx")
