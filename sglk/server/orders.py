"""What an operator asked for and what takes its time: one order for each device group, the last one."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Orders:
    """Drains and restarts on their way, by the name of their group. All methods are called in the event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def give(self, group: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin `work`, in place of what is still under way for `group`."""
        self.cancel(group)
        self._tasks[group] = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._forget(group, task))

    def cancel(self, group: str) -> None:
        """End what is under way for `group`; harmless when there is nothing."""
        if (task := self._tasks.pop(group, None)) is not None:
            task.cancel()

    def _forget(self, group: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(group) is task:
            del self._tasks[group]
