"""The answers that callers still wait for."""

import logging
import threading
from collections.abc import Callable, Iterator

from sglk.engine.about import about
from sglk.engine.answer import Answer
from sglk.engine.messages import Output
from sglk.errors import RequestError

logger = logging.getLogger(__name__)


class OpenAnswers:
    """Answers by request id, from before their requests reach the engine's thread until their last message.

    Any thread may open an answer or wait; all else is for the engine's thread.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._answers)

    def __iter__(self) -> Iterator[Answer]:
        """Iterate over those that are open now, whatever happens to them meanwhile."""
        return iter(list(self._answers.values()))

    def __contains__(self, answer: Answer) -> bool:
        """Whether `answer` itself is open, and not another one of the same id."""
        return self._answers.get(answer.request.request_id) is answer

    def get(self, request_id: str) -> Answer | None:
        """Return the open answer of a request, if there is one."""
        return self._answers.get(request_id)

    def open(self, answer: Answer, post: Callable[[], None]) -> None:
        """Open `answer` and hand its task over by `post`; raises RequestError, also what `post` raises."""
        request_id = answer.request.request_id
        with self._changed:
            if self._closed:
                raise RequestError("the engine is shutting down", code="engine_stopped", status=503)
            if request_id in self._answers:
                raise RequestError(f"request id {request_id!r} is in use; choose another one", param="rid")
            # Known before the engine's thread can see the task, which may be at once.
            self._answers[request_id] = answer
            try:
                post()
            except RequestError:
                del self._answers[request_id]
                raise

    def send(self, answer: Answer, output: Output) -> bool:
        """Give `output` to its receiver; False = that failed, which is to be the end of its own request alone."""
        try:
            answer.on_output(output)
        except Exception:
            with about((output,)):
                logger.exception("request %s: the receiver of its output failed", output.request_id)
            answer.on_output = _nobody
            return False
        return True

    def conclude(self, answer: Answer, output: Output) -> None:
        """Send the last message of an open answer."""
        with self._changed:
            del self._answers[output.request_id]
            self._changed.notify_all()
        self.send(answer, output)

    def close(self) -> None:
        """Refuse to open more."""
        with self._changed:
            self._closed = True

    def wait(self, timeout_s: float) -> None:
        """Wait until none is open, or for `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._answers, timeout_s)


def _nobody(output: Output) -> None:
    """Receive the outputs of a request whose caller failed."""
