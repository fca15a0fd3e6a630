"""The processes that hold one model together, each a part of every block. Letters: T tokens, E hidden width."""

import time

import torch

from sglk.backends.collectives import AsynchronousGroup, ProcessGroup
from sglk.config.schema import RouterConfig

SHARE = 0.9
"""Of the time after which a step counts as hung: before the whole group is given up, its ranks say which one hangs."""


class RanksLost(Exception):
    """The ranks can no longer reach each other, so none of them can compute."""


class RankSilent(RanksLost):
    """Some rank has brought nothing for as long as the others wait."""


def patience_s(router: RouterConfig) -> float:
    """Return how long a rank waits for the others, in seconds."""
    return SHARE * router.step_timeout_s


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
    """Rank `rank` of `size`, which waits `patience_s` for the others; `join` comes before the first sum.

    Every rank makes the same sums in the same order, or all wait for the one that does not.
    """

    def __init__(self, rank: int, size: int, patience_s: float = patience_s(RouterConfig())) -> None:
        self.rank, self.size, self.patience_s = rank, size, patience_s
        self.sums = 0
        """Sums made since the caller last set it to 0."""
        self._group: ProcessGroup | None = None

    def join(self, group: ProcessGroup) -> None:
        """Take the connection to the other ranks."""
        self._group = group

    def sum(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks; raises RanksLost when one is gone, and RankSilent when one hangs."""
        assert self._group is not None, "sum before join"
        x_TE = x_TE.contiguous()
        began_s = time.monotonic()
        try:
            self._group.allreduce([x_TE]).wait()
        except RuntimeError as error:
            silent = time.monotonic() - began_s >= self.patience_s
            raise (RankSilent if silent else RanksLost)(str(error)) from error
        self.sums += 1
        return x_TE

    def check(self) -> None:
        """Raise RanksLost where sums have failed that nobody waited for; when the results of a step have been read."""
        failure = self._group.failure() if isinstance(self._group, AsynchronousGroup) else None
        if failure is not None:
            raise RanksLost(failure)
