"""What the ranks of a model bring together at one point of a forward pass. Letters: N lines, E numbers of a line."""

from dataclasses import dataclass

import torch

from sglk.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Exchange:
    """The sum of what the ranks have of each line, or where `gathered` the line that their parts make side by side."""

    ranks: Ranks
    width: int
    """Numbers of a whole line."""
    gathered: bool
    lines: int = 1
    """Of a token; one for each expert that it visits."""

    def __call__(self, x_NE: torch.Tensor) -> torch.Tensor:
        """Return whole lines, the same bits on each rank; `x_NE` is used up."""
        return self.ranks.gather(x_NE, self.width) if self.gathered else self.ranks.sum(x_NE)

    def with_nothing(self, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """Keep the other ranks from waiting for what this one cannot compute."""
        start, end = self.ranks.share(self.width) if self.gathered else (0, self.width)
        self(torch.zeros((tokens * self.lines, end - start), dtype=dtype, device=device))
