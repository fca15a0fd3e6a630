"""Checkpoints that keep int8 or e4m3 weights as they are, with scales beside them.

Letters: E inputs, O outputs, G groups of inputs that share a scale. `weight` [O, E]; `weight_scale` (for blocks also
`weight_scale_inv`) is one number, [O], [O, 1], [O, G], or [O / rows, G] for blocks. Scales for activations are left:
each token gets its own.
"""

import torch

from sglk.backends.quantised import QuantisedMatrix
from sglk.errors import ModelLoadError
from sglk.models.quantised_weights import QuantisedWeights

_DTYPES = {"w8a8": torch.int8, "w8a16": torch.int8, "fp8": torch.float8_e4m3fn}


class ScaledWeights(QuantisedWeights):
    """Reads compressed-tensors' int-quantized and float-quantized layouts, `fp8`, `w8a8_int8` and `w8a8_fp8`."""

    marker = "weight_scale"
    tensors = frozenset({"weight", "weight_scale", "input_scale", "input_zero_point", "activation_scale"})

    def matrix(self, layer: str) -> QuantisedMatrix:
        """Read one layer."""
        values_OE = self.part(layer, "weight")
        wanted = _DTYPES[self.config.scheme.kind]
        if values_OE.dtype is not wanted or values_OE.ndim != 2 or not values_OE.numel():
            kind = str(wanted).removeprefix("torch.")
            raise self.misfit(layer, "weight", values_OE, f"a matrix of {kind}")
        outputs, inputs = values_OE.shape
        group_size = self.config.scheme.width(inputs)
        return QuantisedMatrix(values_OE, self._scales(layer, outputs, -(-inputs // group_size)), group_size)

    def _scales(self, layer: str, outputs: int, groups: int) -> torch.Tensor:
        stored = self.part(layer, self.marker)
        if not stored.is_floating_point() or not stored.isfinite().all():
            raise self.misfit(layer, self.marker, stored, "finite floats")
        stored = stored.float()
        rows = -(-outputs // self.config.block_rows)
        if stored.numel() == 1:
            return stored.reshape(1, 1).repeat(outputs, groups)
        if stored.numel() != rows * groups:
            raise ModelLoadError(
                f"{self}: tensor {f'{layer}.{self.marker}'!r} has shape {list(stored.shape)}, expected {[rows, groups]}"
            )
        return stored.view(rows, groups).repeat_interleave(self.config.block_rows, dim=0)[:outputs].contiguous()


class InverselyScaledWeights(ScaledWeights):
    """The same, where the scales are called `weight_scale_inv`, which are multiplied all the same (DeepSeek-V3)."""

    marker = "weight_scale_inv"
    tensors = frozenset({"weight", "weight_scale_inv", "input_scale"})
