"""What decoding rows share is counted as what it is: pages less distinct pages, in whatever order the rows come."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sglk.planner.cost.shape import StepShape


def shared_pages(rows: list[list[int]]) -> int:
    decodes = [SimpleNamespace(pages=pages, start=len(pages), samples=False) for pages in rows]
    batch: Any = SimpleNamespace(num_prefills=0, rows=decodes)
    return StepShape.of(cast(Any, batch), page_size=1).shared


@pytest.mark.parametrize("documents", [1, 2, 5])
@pytest.mark.parametrize("instructions", [0, 1, 7])
def test_rows_of_several_documents_behind_the_same_instructions(instructions: int, documents: int) -> None:
    rows = [
        [*range(instructions), *range(100 * (1 + row % documents), 100 * (1 + row % documents) + 20), 1000 + row]
        for row in range(10)
    ]
    random.Random(documents).shuffle(rows)
    assert shared_pages(rows) == sum(map(len, rows)) - len({page for row in rows for page in row})
