from collections.abc import Iterator

import pytest

from tests.server.serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server whose runner makes an answer from the prompt and the seed."""
    with serving() as running:
        yield running
