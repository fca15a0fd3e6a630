import logging
import resource
from collections.abc import Iterator

import pytest

from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.server.descriptors import OWN, make_room
from sglk.server.serve import serve


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


def test_clients_of_engines_elsewhere_take_two_connections_each(soft: int) -> None:
    make_room(soft, 2)
    assert limit() == 2 * soft + OWN


def test_a_limit_that_is_high_enough_stays(soft: int) -> None:
    make_room(soft - OWN)
    assert limit() == soft


@pytest.mark.parametrize("each", [1, 2])
def test_a_limit_that_may_not_be_raised_is_named_beside_the_clients(
    soft: int, each: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        make_room(1000, each)
    assert f"at most {soft} files may be open, so that of 1000 clients" in caplog.text
    assert f"`ulimit -n {1000 * each + OWN}`" in caplog.text


@pytest.mark.parametrize(("words", "each"), [(["model=smollm2"], 1), (["groups=[{name: a, url: 'http://h:1'}]"], 2)])
def test_a_server_counts_the_connections_of_its_kind(
    words: list[str], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(Exception):
        pass

    def count(clients: int, each: int) -> None:
        counted.append((clients, each))
        raise Counted

    counted: list[tuple[int, int]] = []
    monkeypatch.setattr("sglk.server.serve.set_up_logging", lambda *_: None)
    monkeypatch.setattr("sglk.server.serve.make_room", count)
    composed = compose(
        "serve", [*words, "profiles=none", "server.max_queued_requests=7", "runtime.max_running_requests=3"]
    )
    with pytest.raises(Counted):
        serve(composed.config, None, replica_configs(composed))
    assert counted == [(10, each)]
