"""A step that fails is computed again in parts, so that only those requests fail that fail by themselves."""

import logging
from collections.abc import Callable

from sglk.engine.about import about
from sglk.engine.batch import NOT_FINITE, Batch, RowFailure, RowResult, Runner, RunnerLost
from sglk.engine.failure import describe
from sglk.errors import is_out_of_memory

logger = logging.getLogger(__name__)


def run_rows(runner: Runner, batch: Batch, meanwhile: Callable[[], None] = lambda: None) -> list[RowResult | None]:
    """Run `batch` and return one result per row, None for a row that reports nothing.

    `meanwhile` is called while the device works, and must not raise.
    When the runner raises, the halves of the batch are run apart, and so on down to single rows. That is safe because
    a row's KV and token depend on no other row. With one bad row among n it takes about 2 log2(n) more runs, each on
    at most half of the rows.
    """
    try:
        with about(batch.rows):
            wait = runner.launch(batch)
        meanwhile()
        with about(batch.rows):
            results = wait()
    except (RunnerLost, KeyboardInterrupt):
        raise
    # The device, the driver and every op can raise anything: SystemExit would end the engine's thread without a word,
    # and so would what a panic in Rust becomes, which is no Exception.
    except BaseException as error:
        with about(batch.rows):
            logger.exception("a step of %d rows failed", len(batch.rows))
        failure = RowFailure(describe(error), device=not is_out_of_memory(error))
    else:
        assert len(results) == len(batch.rows)
        return _with_reasons(runner, batch, list(results))
    # Outside the handler, so that the error is gone and with it what the failed step still held on the device.
    if len(batch.rows) == 1:
        return [failure]
    middle = len(batch.rows) // 2
    return run_rows(runner, batch.part(0, middle)) + run_rows(runner, batch.part(middle, len(batch.rows)))


def _with_reasons(runner: Runner, batch: Batch, results: list[RowResult | None]) -> list[RowResult | None]:
    """Return `results` with what is known of the rows that came to NOT_FINITE."""
    failed = [index for index, result in enumerate(results) if result == NOT_FINITE]
    if not failed:
        return results
    with about([batch.rows[index] for index in failed]):
        try:
            for index, failure in zip(failed, runner.diagnose(batch, failed), strict=True):
                results[index] = failure
        except (RunnerLost, KeyboardInterrupt):
            raise
        # The rows have failed as it is, and the others have their tokens.
        except BaseException:
            logger.exception("it could not be found out which op is to blame")
    return results
