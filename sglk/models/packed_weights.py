"""compressed-tensors' pack-quantized layout.

Letters: E inputs, O outputs, G groups of inputs that share a scale. `weight_packed` int32 [O, E * bits / 32], lowest
bits first, `weight_scale` [O, G], `weight_zero_point` int32 [O * bits / 32, G], `weight_g_idx` [E], `weight_shape` [2].
Values are stored plus half of their range.
"""

import torch

from sglk.backends.quantised import QuantisedMatrix, pack_nibbles
from sglk.backends.schemes import LinearScheme
from sglk.models.quantised_weights import GroupOrder, QuantisedWeights, unpack_int32


class PackedWeights(QuantisedWeights):
    """Reads int4 and int8 weights, with and without zero points and activation order."""

    marker = "weight_packed"
    tensors = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"})

    def scheme(self, layer: str) -> LinearScheme:
        """Return the scheme; layers of one order of columns may run as one product."""
        return self._order(layer, self._shape(layer)[1]).scheme(self.config.scheme)

    def matrix(self, layer: str) -> QuantisedMatrix:
        """Read one layer, columns brought into the order of their groups."""
        scheme = self.config.scheme
        outputs, inputs = self._shape(layer)
        group_size, order = scheme.width(inputs), self._order(layer, inputs)
        bits = 4 if scheme.kind == "w4a16" else 8
        stored_OE = unpack_int32(self.part(layer, "weight_packed"), bits, 1)[:, :inputs]
        values_OE = order.in_order(stored_OE)
        scales_OG = self.part(layer, "weight_scale", (outputs, -(-inputs // group_size)))
        if bits == 8:
            return QuantisedMatrix((values_OE.int() - 128).to(torch.int8), scales_OG, group_size, None, order.order_E)
        zeros_OG = None
        if not scheme.symmetric:
            zeros_OG = unpack_int32(self.part(layer, "weight_zero_point"), 4, 0)[:outputs].contiguous()
        return QuantisedMatrix(pack_nibbles(values_OE), scales_OG, group_size, zeros_OG, order.order_E)

    def _shape(self, layer: str) -> tuple[int, int]:
        outputs, inputs = self.part(layer, "weight_shape", (2,)).tolist()
        return int(outputs), int(inputs)

    def _order(self, layer: str, inputs: int) -> GroupOrder:
        group_size = self.config.scheme.width(inputs)
        if not self.has(layer, "weight_g_idx"):
            return GroupOrder(torch.arange(inputs) // group_size, group_size, layer)
        origin = f"{self}: tensor {f'{layer}.weight_g_idx'!r}"
        return GroupOrder(self.part(layer, "weight_g_idx", (inputs,)), group_size, origin)
