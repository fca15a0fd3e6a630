"""The processes that hold one model together, each a part of every block. Letters: T tokens, E hidden width."""

import torch

from sglk.backends.collectives import ProcessGroup


class RanksLost(Exception):
    """The ranks can no longer reach each other, so none of them can compute."""


class Ranks:
    """A process's place among the ranks of a model, and the sum over all of them. By itself: a model in one piece."""

    rank = 0
    size = 1

    def sum(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the sum of what the ranks bring, the same bits on each; `x_TE` is used up."""
        return x_TE


ALONE = Ranks()
"""The only rank of a model in one piece."""


class RankGroup(Ranks):
    """Rank `rank` of `size`; `join` comes before the first sum.

    Every rank makes the same sums in the same order, or all wait for the one that does not.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sums = 0
        """Sums made since the caller last set it to 0."""
        self._group: ProcessGroup | None = None

    def join(self, group: ProcessGroup) -> None:
        """Take the connection to the other ranks."""
        self._group = group

    def sum(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks; raises RanksLost when one is gone or does not answer in time."""
        assert self._group is not None, "sum before join"
        x_TE = x_TE.contiguous()
        try:
            self._group.allreduce([x_TE]).wait()
        except RuntimeError as error:
            raise RanksLost(str(error)) from error
        self.sums += 1
        return x_TE
