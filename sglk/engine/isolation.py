"""A step that fails is computed again in parts, so that only those requests fail that fail by themselves."""

import logging

from sglk.engine.batch import Batch, RowFailure, RowResult, Runner, RunnerLost
from sglk.engine.failure import describe, is_out_of_memory

logger = logging.getLogger(__name__)


def run_rows(runner: Runner, batch: Batch) -> list[RowResult | None]:
    """Run `batch` and return one result per row, None for a row that reports nothing.

    When the runner raises, the halves of the batch are run apart, and so on down to single rows. That is safe because
    a row's KV and token depend on no other row. With one bad row among n it takes about 2 log2(n) more runs, each on
    at most half of the rows.
    """
    try:
        results = runner.run(batch)
    except RunnerLost:
        raise
    # The device, the driver and every op can raise anything.
    except Exception as error:
        logger.exception("a step of %d rows failed", len(batch.rows))
        failure = RowFailure(describe(error), device=not is_out_of_memory(error))
    else:
        assert len(results) == sum(row.reports for row in batch.rows)
        reported = iter(results)
        return [next(reported) if row.reports else None for row in batch.rows]
    # Outside the handler, so that the error is gone and with it what the failed step still held on the device.
    if len(batch.rows) == 1:
        return [failure]
    middle = len(batch.rows) // 2
    return run_rows(runner, batch.part(0, middle)) + run_rows(runner, batch.part(middle, len(batch.rows)))
