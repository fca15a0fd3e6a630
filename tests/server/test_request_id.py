import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from sglk.engine.batch import Batch
from sglk.engine.messages import GenerateRequest
from sglk.models.byte_level import EOS_ID
from sglk.server import health
from sglk.server.counting import Outcome
from sglk.server.logs import SHOWN, JsonFormatter, TextFormatter
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import Receiver
from tests.server.serving import ENDLESS, Served, answering, patient_runner, serving, wait_until

BODY = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}


class Lines:
    """What sglk logs, as JSON and as text."""

    def __init__(self) -> None:
        self._json, self._text = io.StringIO(), io.StringIO()
        self.handlers = [logging.StreamHandler(self._json), logging.StreamHandler(self._text)]
        for handler, formatter in zip(self.handlers, (JsonFormatter(), TextFormatter()), strict=True):
            handler.setFormatter(formatter)

    @property
    def every(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._json.getvalue().splitlines()]

    def of(self, request_id: str) -> list[dict[str, object]]:
        return [line for line in self.every if line.get("request_id") == request_id]

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
    well = answering("b")
    with serving({"a": sick, "b": well}, weights={"a": 1, "b": 1}) as served:
        ask(served, "first")
        ask(served, "second")
    moved = [line for name in ("first", "second") for line in lines.of(name) if line["logger"] == "sglk.cluster.router"]
    assert moved
    assert all("replica a/0 failed request cmpl-" in str(line["message"]) for line in moved)


def failing_after(tokens: int, held: threading.Event | None = None) -> ScriptedRunner:
    """A runner whose device fails whatever has so many tokens; with `held`, its first step waits until it is set."""

    def check(step: int, batch: Batch) -> None:
        if held is not None:
            held.wait(120)
        if any(row.num_generated >= tokens for row in batch.rows):
            raise RuntimeError("device on fire")

    return ScriptedRunner(before_step=check)


def test_one_id_leads_from_the_header_through_the_engine_to_the_error_and_the_trace(lines: Lines) -> None:
    ended: list[tuple[str, Outcome | None]] = []
    with serving(
        failing_after(2), on_end=lambda _, record, outcome: ended.append((record.request_id, outcome))
    ) as served:
        text = served.post("/v1/completions", {**BODY, "stream": True}, headers={"x-request-id": "mine"}).text
        wait_until(lambda: bool(ended))
    assert ended == [("mine", "failed")]
    assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["request_id"] == "mine"
    told = {str(line["logger"]): line for line in lines.of("mine")}
    assert set(told) == {"sglk.engine.isolation", "sglk.cluster.router", "sglk.server.access"}
    assert "device on fire" in str(told["sglk.engine.isolation"]["exception"])


def test_what_an_engine_says_of_several_requests_names_them_all(lines: Lines) -> None:
    names, held = [f"client-{number}" for number in range(SHOWN + 2)], threading.Event()
    with serving(failing_after(2, held)) as served:
        threads = [threading.Thread(target=ask, args=(served, name)) for name in names]
        for thread in threads:
            thread.start()
        engine = served.deployment.fleet.first
        wait_until(lambda: engine.stats().running_requests + engine._inbox._tasks.qsize() == len(names))
        held.set()
        for thread in threads:
            thread.join(120)
    (several,) = (line for line in lines.every if len(line.get("request_ids", ())) == len(names))  # type: ignore[arg-type]
    assert set(several["request_ids"]) == set(names)  # type: ignore[call-overload]
    assert several["message"] == f"a step of {len(names)} rows failed"
    (shown,) = (line for line in lines.text.splitlines() if f"a step of {len(names)} rows failed" in line)
    assert shown.endswith(" and 2 more]")
    for name in names:
        assert {"sglk.engine.isolation", "sglk.cluster.router"} <= {str(line["logger"]) for line in lines.of(name)}


def test_what_no_client_sent_is_named_as_the_engine_calls_it(lines: Lines) -> None:
    receiver = Receiver()
    with serving(failing_after(0)) as served:
        served.deployment.fleet.first.submit(GenerateRequest("warm-up", (1,)), receiver)
        receiver.wait()
    assert lines.of("warm-up")


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


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\x1b[2K"])
def test_what_a_message_repeats_cannot_begin_a_line_of_its_own(end: str) -> None:
    forged = f"x{end}2026-01-01 00:00:00,000 ERROR sglk: forged"
    try:
        raise ValueError(forged)
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "no %s", (forged,), (ValueError, error, None))
    first, *traceback = TextFormatter().format(record).splitlines()
    assert "forged" in first
    assert traceback
    assert all(line.startswith("    ") for line in traceback)
    assert "\x1b" not in "".join([first, *traceback])
    assert json.loads(JsonFormatter().format(record))["message"] == f"no {forged}"


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
