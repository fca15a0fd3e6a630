"""What the vendor's attention wants to know of a step: each length twice, on the host and on the device, as int32.

Letters: B rows, P pages of the longest row.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from sglk.backends.rows import PagedRows


@dataclass(frozen=True)
class Twice:
    """The same numbers on both sides."""

    host: torch.Tensor
    device: torch.Tensor


@dataclass(frozen=True)
class Lengths:
    """Lengths and pages of the rows of a step."""

    query_starts: Twice
    """[B + 1]: where each row's queries begin among all queries, and how many there are."""
    kv_starts: Twice
    """[B + 1]: the same for the tokens that are attended to."""
    kv_lens: Twice
    """[B]."""
    page_table_BP: torch.Tensor
    """On the device alone."""

    @classmethod
    def of(cls, rows: PagedRows) -> "Lengths":
        """Return the lengths of `rows`, made once for all layers."""
        if rows not in _made:
            starts = np.concatenate(([0], np.cumsum(rows.kv_lens_B)))
            _made[rows] = cls(
                query_starts=_twice(np.array(rows.query_starts), rows),
                kv_starts=_twice(starts, rows),
                kv_lens=_twice(rows.kv_lens_B, rows),
                page_table_BP=rows.to_device(rows.page_table_BP.astype(np.int32)),
            )
        return _made[rows]


_made: WeakKeyDictionary[PagedRows, Lengths] = WeakKeyDictionary()


def _twice(values: npt.NDArray[np.int64], rows: PagedRows) -> Twice:
    narrow = values.astype(np.int32)
    return Twice(torch.from_numpy(narrow), rows.to_device(narrow))
