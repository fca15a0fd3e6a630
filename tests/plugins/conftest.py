import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglk.plugins import claims


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of distributions that this Python sees; what they register and import is undone."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(claims, "_registered", {})
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("dummy_"):
            del sys.modules[name]
