"""GPTQ checkpoints (Frantar et al. 2022, arXiv:2210.17323), in the layout of AutoGPTQ and GPTQModel.

Letters: E inputs, O outputs, G groups of inputs that share a scale. Of values of 4 bits, `qweight` int32 [E / 8, O]
holds eight inputs a word and `qzeros` int32 [G, O / 8] eight outputs a word, both lowest bits first, and of values of 8
bits half as many; `scales` [G, O]; `g_idx` [E] the group of each input.
"""

import torch

from sglk.backends.quantised import QuantisedMatrix, pack_nibbles
from sglk.backends.schemes import LinearScheme
from sglk.errors import ModelLoadError
from sglk.models.quantised_weights import GroupOrder, QuantisedWeights, signed, unpack_int32

_ONE_IN_EACH = {4: 0x11111111, 8: 0x01010101}
"""By bits."""


class GptqWeights(QuantisedWeights):
    """Reads `checkpoint_format` gptq and gptq_v2, with and without desc_act."""

    marker = "qweight"
    tensors = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    def scheme(self, layer: str) -> LinearScheme:
        """Return the scheme; layers of one order of columns may run as one product."""
        if not self._says_groups(layer):
            return self.config.scheme
        return self._order(layer, self.part(layer, "g_idx").numel()).scheme(self.config.scheme)

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return 4 if self.config.scheme.kind == "w4a16" else 8

    def matrix(self, layer: str) -> QuantisedMatrix:
        """Read one layer, columns brought into the order of their groups."""
        packed = self.words(layer, "qweight")
        inputs, outputs = packed.shape[0] * 32 // self.bits, packed.shape[1]
        group_size = self.config.scheme.width(inputs)
        groups = -(-inputs // group_size)
        order = self._order(layer, inputs)
        values_OE = order.in_order(unpack_int32(packed, self.bits, 0).t())
        scales_OG = self.scales(layer, "scales", (groups, outputs)).t().contiguous()
        zeros_OG = self._zeros(layer, groups, outputs).t().contiguous()
        if self.config.scheme.symmetric:
            self._check_symmetric(layer, zeros_OG)
        zeros = None if self.config.scheme.symmetric else zeros_OG
        if self.bits == 4:
            return QuantisedMatrix(pack_nibbles(values_OE), scales_OG, group_size, zeros, order.order_E)
        return QuantisedMatrix(
            signed(values_OE), scales_OG, group_size, None if zeros is None else signed(zeros), order.order_E
        )

    def _order(self, layer: str, inputs: int) -> GroupOrder:
        group_size = self.config.scheme.width(inputs)
        if not self._says_groups(layer):
            return GroupOrder(torch.arange(inputs) // group_size, group_size, layer)
        origin = f"{self}: tensor {f'{layer}.g_idx'!r}"
        return GroupOrder(self.part(layer, "g_idx", (inputs,)), group_size, origin)

    def _zeros(self, layer: str, groups: int, outputs: int) -> torch.Tensor:
        packed = self.words(layer, "qzeros", (groups, outputs * self.bits // 32))
        if self.config.zeros_less_one:
            # Whole words: what was taken off a zero point of 0 was borrowed from its neighbour.
            packed = packed + torch.tensor(_ONE_IN_EACH[self.bits], dtype=torch.int32)
        return unpack_int32(packed, self.bits, 1)

    def _check_symmetric(self, layer: str, zeros_OG: torch.Tensor) -> None:
        middle = 1 << self.bits - 1
        if (zeros_OG != middle).any():
            found = int(zeros_OG[zeros_OG != middle][0])
            raise ModelLoadError(
                f"{self}: tensor {f'{layer}.qzeros'!r} has zero point {found} where `sym` promises {middle}; "
                "`checkpoint_format` or `sym` of the configuration is wrong"
            )

    def _says_groups(self, layer: str) -> bool:
        return self.config.reordered or self.has(layer, "g_idx")
