import io
import json
import logging
from collections.abc import Iterator

import pytest

from sglk.models.byte_level import EOS_ID
from sglk.server import health
from sglk.server.logs import JsonFormatter, TextFormatter
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import ENDLESS, Served, patient_runner, scripted_answers, serving, wait_until

BODY = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}


class Lines:
    """What sglk logs, as JSON and as text."""

    def __init__(self) -> None:
        self._json, self._text = io.StringIO(), io.StringIO()
        self.handlers = [logging.StreamHandler(self._json), logging.StreamHandler(self._text)]
        for handler, formatter in zip(self.handlers, (JsonFormatter(), TextFormatter()), strict=True):
            handler.setFormatter(formatter)

    def of(self, request_id: str) -> list[dict[str, object]]:
        every = [json.loads(line) for line in self._json.getvalue().splitlines()]
        return [line for line in every if line.get("request_id") == request_id]

    @property
    def text(self) -> str:
        """Each line is written here last."""
        return self._text.getvalue()


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, found = logging.getLogger("sglk"), Lines()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    for handler in found.handlers:
        logger.addHandler(handler)
    yield found
    for handler in found.handlers:
        logger.removeHandler(handler)
    logger.setLevel(level)


def ask(served: Served, request_id: str, path: str = "/v1/completions", **body: object) -> str:
    response = served.post(path, {**BODY, **body}, headers={"x-request-id": request_id})
    return response.headers["x-request-id"]


@pytest.mark.parametrize("given", ["abc", "00-4bf92f3577b34da6-01", "a/b:c=d@e#f", "x" * 128])
def test_a_sane_id_comes_back(served: Served, given: str) -> None:
    assert ask(served, given) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", 'a"b', "a\\b", "<script>", "a,b", "a\tb"])
def test_any_other_is_replaced(served: Served, given: str) -> None:
    found = ask(served, given)
    assert len(found) == 32
    assert found != given


def test_every_answer_has_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        served.get("/health"),
        served.get("/nowhere"),
        served.client.put("/health"),
        served.post("/v1/completions", {**BODY, "max_tokens": -1}),
        served.post("/v1/completions", {**BODY, "stream": True}),
    ]
    monkeypatch.setattr(health, "_state", lambda _: 1 / 0)
    answers.append(served.client.get("/health", headers={"x-request-id": "mine"}))
    assert [answer.status_code for answer in answers] == [200, 404, 405, 400, 200, 500]
    assert all(answer.headers["x-request-id"] for answer in answers)
    assert answers[-1].headers["x-request-id"] == "mine"


def test_a_refusal_for_a_missing_key_has_one_too() -> None:
    with serving(server={"api_key": "key"}) as served:
        assert ask(served, "mine") == "mine"


def test_a_request_is_one_line_with_its_facts(served: Served, lines: Lines) -> None:
    ask(served, "one")
    wait_until(lambda: "[one]" in lines.text)
    (line,) = lines.of("one")
    assert line["level"] == "info"
    assert line["logger"] == "sglk.server.access"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["outcome"], line["replica"]) == ("completed", "left/0")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (5, 4)
    assert 0 < line["ttft_s"] <= line["seconds"]  # type: ignore[operator]
    assert "POST /v1/completions 200 completed in " in lines.text
    assert lines.text.rstrip().endswith("4 new ones [one]")


def test_probes_are_not_worth_a_line(served: Served, lines: Lines) -> None:
    served.client.get("/health", headers={"x-request-id": "probe"})
    ask(served, "after")
    wait_until(lambda: bool(lines.of("after")))
    assert [line["level"] for line in lines.of("probe")] == ["debug"]


def test_a_path_cannot_begin_a_line_of_its_own(served: Served, lines: Lines) -> None:
    served.client.get("/no%0A2026-01-01 ERROR forged", headers={"x-request-id": "forger"})
    wait_until(lambda: "[forger]" in lines.text)
    assert "\n2026-01-01 ERROR forged" not in lines.text


def test_lines_of_other_threads_carry_the_id(lines: Lines) -> None:
    sick = ScriptedRunner(eos_token_ids=frozenset({EOS_ID}), spoils=lambda row: "on fire")
    well = ScriptedRunner(eos_token_ids=frozenset({EOS_ID}), script=scripted_answers("b"))
    with serving({"a": sick, "b": well}, weights={"a": 1, "b": 1}) as served:
        ask(served, "first")
        ask(served, "second")
    moved = [line for name in ("first", "second") for line in lines.of(name) if line["logger"] == "sglk.cluster.router"]
    assert moved
    assert all("replica a/0 failed request cmpl-" in str(line["message"]) for line in moved)


def test_a_failure_is_a_warning_and_its_traceback_has_the_id(
    served: Served, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_state", lambda _: 1 / 0)
    served.client.get("/health", headers={"x-request-id": "broken"})
    wait_until(lambda: len(lines.of("broken")) == 2)
    assert {line["level"] for line in lines.of("broken")} == {"error", "warning"}


def test_a_client_that_leaves_is_an_abortion(lines: Lines) -> None:
    with serving(patient_runner()) as served:
        connection = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 1)
        connection.close()
        wait_until(lambda: " aborted in " in lines.text)


def test_an_exception_is_one_line_of_json() -> None:
    try:
        raise ValueError("two\nlines \ud800")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "it %s", ("failed",), (ValueError, error, None))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "it failed"
    assert told["exception"].startswith("ValueError: two")
