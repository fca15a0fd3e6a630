"""What an operator asked for and what takes its time: one order for each device group, the last one."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Order:
    """A drain or a restart, as it was asked for."""

    kind: str
    timeout_s: float


class Orders:
    """Orders on their way, by the name of their group. All methods are called in the event loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, tuple[Order, asyncio.Task[None]]] = {}

    def give(self, group: str, order: Order, work: Work) -> None:
        """Begin `work`, in place of another order for `group`; the same one once more changes nothing."""
        if group in self._under_way and self._under_way[group][0] == order:
            return
        self.cancel(group)
        task = asyncio.get_running_loop().create_task(work())
        self._under_way[group] = order, task
        task.add_done_callback(lambda _: self._forget(group, task))

    def cancel(self, group: str) -> None:
        """End what is under way for `group`; harmless when there is nothing."""
        if group in self._under_way:
            _, task = self._under_way.pop(group)
            task.cancel()

    def _forget(self, group: str, task: asyncio.Task[None]) -> None:
        if group in self._under_way and self._under_way[group][1] is task:
            del self._under_way[group]
