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
            post(lambda: (task(), ran.set()), cancel)
            assert ran.wait(WAIT_S)

        monkeypatch.setattr(engine._inbox, "post", post_and_let_it_run)
        receiver = submit(engine, "a", [1, 2, 3])
        monkeypatch.undo()
        assert receiver.wait().reason == "length"


def test_a_refused_request_leaves_its_name_free() -> None:
    with running() as engine:
        engine._inbox.close("closed for a test")
        for _ in range(2):
            with pytest.raises(RequestError, match="closed for a test"):
                submit(engine, "a", [1, 2, 3])
        assert engine.stats().queued_requests == 0
