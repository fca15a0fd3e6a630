import os
import socket

import pytest

from sglk.errors import ConfigError
from sglk.server.port import bind, url_of


def test_port_0_gives_a_free_one() -> None:
    with bind("127.0.0.1", 0) as one, bind("127.0.0.1", 0) as two:
        assert url_of(one) != url_of(two)
        assert url_of(one).startswith("http://127.0.0.1:")


def test_a_bound_port_refuses_until_it_listens() -> None:
    with bind("127.0.0.1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_taken_port_names_its_holder(host: str) -> None:
    with bind(host, 0) as holder:
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"server.port={port} is taken by process {os.getpid()}; .*port=0"):
            bind(host, port)


def test_all_addresses_are_reached_by_the_local_one() -> None:
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.host=192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.host=no such host"):
        bind("no such host", 0)
