"""The processes that hold one model together, each a part of every block. Letters: N lines, E numbers of a line."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from sglk.backends.collectives import AsynchronousGroup, ProcessGroup, Work
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


def share(width: int, index: int, pieces: int) -> tuple[int, int]:
    """Return where piece `index` of `pieces` nearly equal ones of `width` neighbours begins and ends."""
    return width * index // pieces, width * (index + 1) // pieces


class Ranks:
    """A process's place among the ranks of a model, and what they do together. By itself: a model in one piece."""

    rank = 0
    size = 1
    deterministic: bool | None = None
    """Whether a request's bits must not depend on how many ranks there are; None = as the backend has it."""

    def share(self, width: int) -> tuple[int, int]:
        """Return where this rank's part of `width` neighbours begins and ends."""
        return share(width, self.rank, self.size)

    def sum(self, x_NE: torch.Tensor) -> torch.Tensor:
        """Return the sum of what the ranks bring, the same bits on each; `x_NE` is used up."""
        return x_NE

    def gather(self, x_NE: torch.Tensor, width: int) -> torch.Tensor:
        """Return lines of `width` numbers, of which each rank brings its `share`."""
        return x_NE


ALONE = Ranks()
"""The only rank of a model in one piece."""


class RankGroup(Ranks):
    """Rank `rank` of `size`, which waits `patience_s` for the others; `join` comes before the first exchange.

    Every rank makes the same exchanges in the same order, or all wait for the one that does not.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        patience_s: float = patience_s(RouterConfig()),
        deterministic: bool | None = None,
    ) -> None:
        self.rank, self.size, self.patience_s, self.deterministic = rank, size, patience_s, deterministic
        self.exchanges = 0
        """Made since the caller last set it to 0."""
        self._group: ProcessGroup | None = None

    def join(self, group: ProcessGroup) -> None:
        """Take the connection to the other ranks."""
        self._group = group

    def sum(self, x_NE: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks; raises RanksLost when one is gone, and RankSilent when one hangs."""
        x_NE = x_NE.contiguous()
        self._exchange(lambda group: group.allreduce([x_NE]))
        return x_NE

    def gather(self, x_NE: torch.Tensor, width: int) -> torch.Tensor:
        """Return whole lines; raises as `sum` does."""
        sizes = [end - start for start, end in (share(width, rank, self.size) for rank in range(self.size))]
        # Libraries take parts of one size.
        mine_NE = F.pad(x_NE, (0, max(sizes) - x_NE.shape[1])).contiguous()
        parts = [torch.empty_like(mine_NE) for _ in sizes]
        self._exchange(lambda group: group.allgather([parts], [mine_NE]))
        return torch.cat([part_NE[:, :size] for part_NE, size in zip(parts, sizes, strict=True)], dim=1)

    def check(self) -> None:
        """Raise RanksLost where exchanges have failed that nobody waited for; when a step's results have been read."""
        failure = self._group.failure() if isinstance(self._group, AsynchronousGroup) else None
        if failure is not None:
            raise RanksLost(failure)

    def _exchange(self, start: Callable[[ProcessGroup], Work]) -> None:
        assert self._group is not None, "an exchange before join"
        began_s = time.monotonic()
        try:
            start(self._group).wait()
        except RuntimeError as error:
            silent = time.monotonic() - began_s >= self.patience_s
            raise (RankSilent if silent else RanksLost)(str(error)) from error
        self.exchanges += 1
