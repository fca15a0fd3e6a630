"""Server-sent chunks of the two OpenAI routes, built without a model object per token."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.types import Scope

from sglk.engine.messages import Output
from sglk.errors import RequestError
from sglk.server.answers import Answer, raise_if_failed, usage
from sglk.server.bridge import Generation
from sglk.server.streaming import DONE, dump, failure_event


class OpenAIStream(ABC):
    """One streamed response: `head` (id, object, created, model) is common to all of its chunks."""

    def __init__(self, head: Mapping[str, Any], generation: Generation, n: int, include_usage: bool) -> None:
        self._head = f"data: {dump(head)[:-1]}"
        self._tail = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._generation = generation
        self._n = n
        self._include_usage = include_usage
        self._answers = [Answer() for _ in generation.request_ids]

    @abstractmethod
    def chunk(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> str:
        """Return the JSON of `choices` for news of answer number `index`."""

    @abstractmethod
    def logprobs(self, index: int, output: Output) -> Any:
        """Return the `logprobs` of new tokens of answer number `index`, which are asked for."""

    def lead(self, index: int, output: Output) -> str | None:
        """Return the JSON of `choices` that precedes `output`, the first news of an answer, if any."""
        return None

    async def events(self, scope: Scope) -> AsyncIterator[bytes]:
        """Yield the chunks, all that one engine step brought in one piece."""
        try:
            async for batch in self._generation.batches():
                lines = [line for index, output in batch for line in self._lines(index, output)]
                if lines:
                    yield "".join(lines).encode()
                for _, output in batch:
                    raise_if_failed(output.finish)
        except RequestError as error:
            yield failure_event(scope, error)
            return
        if self._include_usage:
            totals = dump(usage(self._answers, self._n))
            yield f'{self._head},"choices":[],"usage":{totals}}}\n\n'.encode()
        yield DONE

    def _lines(self, index: int, output: Output) -> list[str]:
        answer = self._answers[index]
        choices: list[str | None] = [self.lead(index, output)] if answer.untouched else []
        answer.count(output)
        if output.text or output.logprobs:
            logprobs = self.logprobs(index, output) if output.logprobs else None
            choices.append(self.chunk(index, output.text, logprobs, None))
        if answer.finish_reason is not None:
            choices.append(self.chunk(index, "", None, answer.finish_reason))
        return [f'{self._head},"choices":{each}{self._tail}' for each in choices if each is not None]
