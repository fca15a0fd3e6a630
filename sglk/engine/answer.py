"""One answer on its way out: tokens become text, stop strings end it, messages go to the caller."""

from collections.abc import Callable

from sglk.engine.detokenizer import Decoder, Detokenizer
from sglk.engine.messages import Finish, GenerateRequest, Output
from sglk.engine.request import Request
from sglk.engine.stop import StopStrings


class Answer:
    """What the caller of one request has received so far."""

    def __init__(
        self, request: GenerateRequest, on_output: Callable[[Output], None], decoder: Decoder, submitted_s: float
    ) -> None:
        self.request = request
        self.on_output = on_output
        self._submitted_s = submitted_s
        self._queue_s: float | None = None
        self._detokenizer = Detokenizer(decoder, request.prompt_ids)
        self._stops = StopStrings(request.sampling.stop)
        self._prompt_tokens = len(request.prompt_ids)
        self._cached_tokens = 0
        self._completion_tokens = 0

    def begin(self, now_s: float) -> None:
        """Take note of the first step; later calls (more chunks, another admission) change nothing."""
        if self._queue_s is None:
            self._queue_s = now_s - self._submitted_s

    def advance(self, request: Request) -> Output:
        """Turn the last token of `request` into a message; a stop string may finish it before its tokens do."""
        token, finish = request.tokens[-1], request.finish
        self._completion_tokens += 1
        self._cached_tokens = request.cached_tokens
        text = ""
        if not (finish and finish.reason == "stop"):
            text = self._stops.push(self._detokenizer.push(token))
        return self._message((token,), text, finish)

    def close(self, finish: Finish) -> Output:
        """End the answer where it is."""
        return self._message((), "", finish)

    def _message(self, token_ids: tuple[int, ...], text: str, finish: Finish | None) -> Output:
        if finish and self._stops.matched is None:
            text += self._stops.push(self._detokenizer.flush())
        if self._stops.matched is not None:
            finish = Finish("stop", matched=self._stops.matched)
        elif finish:
            text += self._stops.flush()
        return Output(
            request_id=self.request.request_id,
            token_ids=token_ids,
            text=text,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=self._cached_tokens,
            finish=finish,
            queue_s=self._queue_s,
        )
