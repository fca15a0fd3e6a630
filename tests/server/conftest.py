from collections.abc import Iterator

import pytest

from tests.server.serving import Served, answering, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server whose runner makes an answer from the prompt and the seed."""
    with serving() as running:
        yield running


@pytest.fixture
def pair() -> Iterator[Served]:
    """Groups `a` and `b`, which answer with their own name."""
    with serving({"a": answering("a"), "b": answering("b")}, weights={"a": 80, "b": 20}) as running:
        yield running
