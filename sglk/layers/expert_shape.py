"""The numbers of a layer's experts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertShape:
    """Numbers that all experts of a layer share."""

    experts: int
    top_k: int
    hidden: int
    width: int
