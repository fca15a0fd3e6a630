from pathlib import Path

import pytest

from tests.doctor.trees import Tree
from tests.plugins.conftest import site

__all__ = ["site"]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)
