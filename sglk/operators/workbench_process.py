"""The process that ops run in, which they may crash or hang: does as `sglk.operators.remote` says.

Started as `python -m sglk.operators.workbench_process FD`; FD is its end of a pipe.
"""

import contextlib
import sys
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

from sglk.errors import BackendError, CapacityError, ConfigError, ModelLoadError, RunError, SglkError
from sglk.last_words import name_what_crashes
from sglk.operators.workbench import Workbench
from sglk.plugins.causes import in_words
from sglk.plugins.containment import output_on_stderr
from sglk.plugins.elsewhere import register_from

_KINDS = (ConfigError, ModelLoadError, BackendError, CapacityError, RunError, SglkError)


def main() -> None:
    """Serve until the pipe closes."""
    name_what_crashes()
    with Connection(int(sys.argv[1])) as connection, contextlib.suppress(EOFError, BrokenPipeError):
        serve(connection)


def serve(connection: Any) -> None:
    """Answer every question with a value or an exception; raises EOFError when the other end is closed."""
    bench: Workbench | None = None
    while True:
        question, arguments = connection.recv()
        try:
            # What ops have printed is to be there before the answer is.
            with output_on_stderr():
                if bench is None:
                    bench, answer = _opened(*arguments), None
                else:
                    answer = getattr(bench, question)(*arguments)
        except KeyboardInterrupt:
            raise
        # The device, the driver and every op can raise anything; whoever asked gets to know.
        except BaseException as error:  # noqa: BLE001
            answer = ExceptionWithTraceback(_portable(error), error.__traceback__)
        connection.send(answer)


def _opened(config: Any, factory: str | None) -> Workbench:
    if factory is not None:
        register_from(config.backend.name, factory)
    return Workbench(config)


def _portable(error: BaseException) -> Exception:
    """Return what another process can be told of `error`, without the modules of a plugin."""
    if isinstance(error, SglkError):
        return next(kind for kind in _KINDS if isinstance(error, kind))(str(error))
    if isinstance(error, Exception) and type(error).__module__ == "builtins":
        return error
    return RuntimeError(in_words(error))


if __name__ == "__main__":
    main()
