"""One answer on its way out: tokens become text, stop strings end it, messages go to the caller."""

from collections.abc import Callable
from dataclasses import replace

from sglk.engine.detokenizer import Speller, detokenizer_for
from sglk.engine.messages import FULL, Finish, GenerateRequest, Output, TokenLogprob
from sglk.engine.request import Request
from sglk.engine.stop import StopStrings


class Answer:
    """What the caller of one request has received so far."""

    def __init__(
        self,
        request: GenerateRequest,
        on_output: Callable[[Output], None],
        speller: Speller,
        submitted_s: float,
        replica: str,
    ) -> None:
        self.request = request
        self.on_output = on_output
        self._submitted_s = submitted_s
        self._replica = replica
        self._queue_s: float | None = None
        self._detokenizer = detokenizer_for(speller, request.prompt_ids)
        self._stops = StopStrings(request.sampling.stop)
        self._prompt_tokens = len(request.prompt_ids)
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._min_new_tokens = request.sampling.min_new_tokens
        self._wants_prompt_logprobs = request.sampling.prompt_logprobs_start is not None

    def begin(self, now_s: float) -> None:
        """Take note of the first step; later calls (more chunks, another admission) change nothing."""
        if self._queue_s is None:
            self._queue_s = now_s - self._submitted_s

    def advance(self, request: Request) -> Output:
        """Turn the last token of `request` into a message; a stop string may finish it before its tokens do."""
        self._cached_tokens = request.cached_tokens
        prompt_logprobs = self._take_prompt_logprobs(request)
        if request.sampling.max_new_tokens == 0:
            return replace(self._message((), "", FULL), prompt_logprobs=prompt_logprobs)
        self._completion_tokens += 1
        output = self._message((request.tokens[-1],), self._new_text(request), request.finish)
        if request.logprob is None:
            return output
        return replace(output, logprobs=(request.logprob,), prompt_logprobs=prompt_logprobs)

    def close(self, finish: Finish) -> Output:
        """End the answer where it is."""
        return self._message((), "", finish)

    def _new_text(self, request: Request) -> str:
        if request.finish and request.finish.reason == "stop":
            return ""
        text = self._detokenizer.push(request.tokens[-1])
        return text if self._completion_tokens <= self._min_new_tokens else self._stops.push(text)

    def _take_prompt_logprobs(self, request: Request) -> tuple[TokenLogprob | None, ...] | None:
        if not self._wants_prompt_logprobs:
            return None
        self._wants_prompt_logprobs = False
        return (None, *request.prompt_logprobs)

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
            replica=self._replica,
        )
