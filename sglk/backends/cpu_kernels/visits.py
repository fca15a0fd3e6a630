"""Which expert each row of a product visits. Letters: T tokens, C experts chosen for a token, R = T * C visits."""

from dataclasses import dataclass

import numpy as np
import torch

from sglk.backends.rows import IntArray


@dataclass(frozen=True, slots=True)
class Visits:
    """All visits, those of an expert side by side, in the order of tokens."""

    experts: IntArray
    """Experts that somebody visits, in order."""
    starts: IntArray
    """The first visit of each, and R at the end."""
    tokens_R: torch.Tensor
    """The token of each visit."""
    places_TC: IntArray
    """Where the visits of each token are."""

    @classmethod
    def of(cls, ids_TC: torch.Tensor) -> "Visits":
        """Return the visits to the chosen experts."""
        ids_R = ids_TC.numpy().reshape(-1)
        order_R = ids_R.argsort(kind="stable")
        experts, starts = np.unique(ids_R[order_R], return_index=True)
        places_TC = np.empty(ids_TC.shape, np.int64)
        places_TC.reshape(-1)[order_R] = np.arange(len(ids_R))
        tokens_R = torch.from_numpy(order_R // ids_TC.shape[1])
        return cls(experts, np.append(starts, len(ids_R)).astype(np.int64), tokens_R, places_TC)
