from collections.abc import Iterator

import openai
import pytest

from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import MODEL, scripted_answers, serving

TEXT = "The capital of France is Paris."
QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    runner = ScriptedRunner(script=scripted_answers(TEXT))
    with serving(runner, server={"api_key": "key"}) as served, openai.DefaultHttpxClient(trust_env=False) as transport:
        yield openai.OpenAI(base_url=f"{served.url}/v1", api_key="key", http_client=transport, max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "sglk"


def test_completions(client: openai.OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=100, n=2)

    assert [choice.text for choice in completion.choices] == [TEXT] * 4
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4 * (len(TEXT) + 1)


def test_streamed_completions(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=100, stream=True)

    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model=MODEL, messages=QUESTION)

    assert completion.choices[0].message.content == TEXT
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].finish_reason == "stop"


def test_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None


def test_the_stream_manager(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
        final = stream.get_final_completion()

    assert final.choices[0].message.content == TEXT


def test_error_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="other", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=MODEL, prompt="x", max_tokens=-1)
    assert wrong.value.param == "max_tokens"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="x" * 300)
    assert long.value.code == "context_length_exceeded"
