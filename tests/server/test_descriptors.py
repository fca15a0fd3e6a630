import logging
import resource
from collections.abc import Iterator

import pytest

from sglk.server.descriptors import OWN, make_room


@pytest.fixture
def soft() -> Iterator[int]:
    """A limit of open files that is low, and may be raised."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_room_is_made_for_as_many_clients_as_may_wait_and_run(soft: int, caplog: pytest.LogCaptureFixture) -> None:
    make_room(soft)
    assert limit() == soft + OWN
    assert not caplog.records


def test_a_limit_that_is_high_enough_stays(soft: int) -> None:
    make_room(soft - OWN)
    assert limit() == soft


def test_a_limit_that_may_not_be_raised_is_named(
    soft: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        make_room(1000)
    assert f"at most {soft} files may be open" in caplog.text
    assert f"`ulimit -n {1000 + OWN}`" in caplog.text
