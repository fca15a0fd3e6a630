"""When an engine gives its device up: after failed steps in a row, unless the device still computes a plain prompt."""

import logging
from collections.abc import Sequence

from sglk.engine.batch import Batch, BatchRow, RowFailure, RowResult, Runner
from sglk.engine.core import Core
from sglk.engine.isolation import run_rows
from sglk.engine.messages import SamplingParams

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 5
"""Failed steps in a row after which the device is tried."""


class Patience:
    """Counts the steps in a row in which the device failed every request."""

    def __init__(self) -> None:
        self._failed_steps = 0

    def note(self, results: Sequence[RowResult | None], runner: Runner, core: Core) -> None:
        """Take note of a step; raises RuntimeError when the device is to be given up.

        Requests that fail whenever they are computed could come in a row, from one client even: they are to blame, and
        not the device, where that still computes the prompt that it began its life with.
        """
        failures = [result for result in results if isinstance(result, RowFailure) and result.device]
        if len(failures) < len(results):
            self._failed_steps = 0
            return
        self._failed_steps += 1
        if self._failed_steps < MAX_FAILED_STEPS:
            return
        if not _computes(runner, core):
            raise RuntimeError(f"{self._failed_steps} steps failed in a row, the last with {failures[-1].message}")
        logger.warning("%d steps failed in a row, yet the device computes a plain prompt: going on", self._failed_steps)
        self._failed_steps = 0


def _computes(runner: Runner, core: Core) -> bool:
    """Whether the device makes a token of a prompt of one; it needs a page, which may be taken from the cache."""
    if core.pool.free_pages == 0 and core.cache.evict(1) == 0:
        return True  # other requests hold all pages, and theirs are the steps that tell
    pages = core.pool.allocate(1)
    try:
        row = BatchRow("trial", (0,), 0, pages, SamplingParams(temperature=0.0), 0, 0, samples=True, tokens=(0,))
        (result,) = run_rows(runner, Batch([row], 1))
        return not isinstance(result, RowFailure)
    finally:
        core.pool.free(pages)
