"""The process of a rank other than the first: loads its part of the model, then does as the engine's process says.

Started by `sglk.engine.follower` as `python -m sglk.engine.rank_process FD`; FD is its end of a pipe.
"""

import logging
import sys
from multiprocessing.connection import Connection
from typing import Any

from sglk.engine.failure import in_words
from sglk.engine.loading import backend_name, load_rank, rank_group
from sglk.engine.rank_messages import Call, Failure, Load, Reply
from sglk.engine.rank_runner import RankRunner
from sglk.last_words import name_what_crashes
from sglk.parallel.ranks import RanksLost
from sglk.plugins.elsewhere import register_from

logger = logging.getLogger(__name__)


def main() -> None:
    """Serve until the pipe closes."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    name_what_crashes()
    with Connection(int(sys.argv[1])) as connection:
        try:
            serve(connection)
        except (EOFError, BrokenPipeError):
            # The engine's process is gone, and with it the reason to be here.
            return


def serve(connection: Any) -> None:
    """Answer every message with one Reply; raises EOFError when the other end is closed."""
    part: RankRunner | None = None
    while True:
        message = connection.recv()
        try:
            if isinstance(message, Load):
                part, value = _load(message), None
            else:
                value = _call(part, message)
            failure = None
        except KeyboardInterrupt:
            raise
        # The device, the driver and every op can raise anything; whoever asked gets to know.
        except BaseException as error:
            logger.exception("%s failed", type(message).__name__)
            value, failure = None, failure_of(error)
        connection.send(Reply(value, failure, part.peak_memory_bytes() if part else 0))


def failure_of(error: BaseException) -> Failure:
    """Return what another process can be told of `error`."""
    return Failure(type(error).__name__, in_words(error), lost=isinstance(error, RanksLost))


def _load(message: Load) -> RankRunner:
    if message.factory is not None:
        register_from(backend_name(message.config), message.factory)
    ranks = rank_group(message.config, message.rank)
    runner, _ = load_rank(message.config, ranks)
    return RankRunner(runner, ranks)


def _call(part: RankRunner | None, message: Call) -> Any:
    assert part is not None, "a call before the model is loaded"
    return getattr(part, message.method)(*message.arguments)


if __name__ == "__main__":
    main()
