"""Work that other threads hand to the engine's thread."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TypeVar

from sglk.errors import RequestError

T = TypeVar("T")

Task = Callable[[], object]
Cancel = Callable[[str], None]


class Inbox:
    """A queue of tasks that can be closed for good; what is in it then is cancelled, so that nobody waits for ever."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Task, Cancel]] = SimpleQueue()
        self._lock = Lock()
        self._closed: str | None = None

    def post(self, task: Task, cancel: Cancel = lambda reason: None) -> None:
        """Queue `task`; `cancel` is called with the reason instead when the engine stops first.

        Raises RequestError (503) when the inbox is closed.
        """
        with self._lock:
            if self._closed is not None:
                raise RequestError(self._closed, code="engine_stopped", status=503)
            self._tasks.put((task, cancel))

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Queue `function` and return the promise of its result; raises RequestError (503) when closed."""
        promise: Future[T] = Future()

        def task() -> None:
            if not promise.set_running_or_notify_cancel():
                return  # whoever asked waits no longer
            try:
                promise.set_result(function())
            # Not lost: whoever waits for the promise gets it.
            except BaseException as error:  # noqa: BLE001
                promise.set_exception(error)

        def cancel(reason: str) -> None:
            if promise.set_running_or_notify_cancel():
                promise.set_exception(RequestError(reason, code="engine_stopped", status=503))

        self.post(task, cancel)
        return promise

    def work(self, *, wait: bool) -> None:
        """Run the tasks that are queued, in order; with `wait`, at least one."""
        while True:
            try:
                task, _ = self._tasks.get(block=wait)
            except Empty:
                return
            wait = False
            task()

    def close(self, reason: str) -> None:
        """Refuse further tasks and cancel those that are queued."""
        with self._lock:
            self._closed = reason
        while not self._tasks.empty():
            _, cancel = self._tasks.get()
            cancel(reason)
