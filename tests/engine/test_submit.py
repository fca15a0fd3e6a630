"""A request is known before the engine's thread can see it."""

import threading
from collections.abc import Callable

import pytest

from sglk.errors import RequestError
from tests.engine.receiving import WAIT_S, running, submit


def test_a_request_that_starts_at_once_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as engine:
        post = engine._inbox.post

        def post_and_let_it_run(task: Callable[[], None], cancel: Callable[[str], None]) -> None:
            ran = threading.Event()

            def run() -> None:
                task()
                ran.set()

            post(run, cancel)
            assert ran.wait(WAIT_S)

        monkeypatch.setattr(engine._inbox, "post", post_and_let_it_run)
        receiver = submit(engine, "a", [1, 2, 3])
        monkeypatch.undo()
        assert receiver.wait().reason == "length"


def test_a_refused_request_leaves_its_name_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: Callable[[], None], cancel: Callable[[str], None]) -> None:
        raise RequestError("the engine is gone", status=503)

    with running() as engine:
        monkeypatch.setattr(engine._inbox, "post", refuse)
        for _ in range(2):
            with pytest.raises(RequestError, match="the engine is gone"):
                submit(engine, "a", [1, 2, 3])
        monkeypatch.undo()
        assert submit(engine, "a", [1, 2, 3]).wait().reason == "length"
