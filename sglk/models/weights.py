"""The contract between weight files and models."""

from collections.abc import Iterable
from typing import Protocol

import torch

from sglk.backends.quantised import QuantisedMatrix


class WeightSource(Protocol):
    """Weights by their Hugging Face names, whichever file format holds them."""

    def names(self) -> Iterable[str]:
        """Return the names of all tensors, without reading them."""

    def get(self, name: str) -> torch.Tensor | QuantisedMatrix:
        """Return one tensor on the CPU, in the dtype it is stored in.

        A GGUF file gives fp32 where it is quantised, a quantised Hugging Face folder a QuantisedMatrix. Raises
        ModelLoadError where the source has no such tensor.
        """

    def __str__(self) -> str:
        """Return the file or folder, for messages."""
