import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operators import throwaway


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = throwaway.install(tmp_path_factory.mktemp("site"))
    before = sys.path[:]
    sys.path.append(str(folder))
    yield folder
    # Scripts that ran in this process have added to it too.
    sys.path[:] = before
    sys.modules.pop(throwaway.MODULE, None)
