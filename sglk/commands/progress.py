"""How far a long command is, on stderr, where somebody watches."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def watched(items: Iterable[T], total: int, text: str, wanted: bool = True) -> Iterator[T]:
    """Yield `items`, of which there are `total`, beside a bar; without one where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal), transient=True) as progress:
        yield from progress.track(items, total=total, description=text)
