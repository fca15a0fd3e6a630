"""The moment at which the server's time to finish is over."""

from collections.abc import Callable


class CutOff:
    """Tells whoever waits for a client that what is not complete by now ends."""

    def __init__(self) -> None:
        self.over = False
        """Whether the moment has come."""
        self.waiting: set[Callable[[], None]] = set()
        """Are called when it comes."""

    def set(self) -> None:
        """Let it come; harmless when repeated."""
        self.over = True
        for tell in list(self.waiting):
            tell()
