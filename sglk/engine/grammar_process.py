"""The process that tries grammars out: compiles each one that comes, and is killed by what takes too much.

Started by `sglk.engine.grammar_trial` as `python -m sglk.engine.grammar_process FD SECONDS`; FD is its end of a pipe.
"""

import contextlib
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection

from sglk.engine.grammar_compiler import Compiler
from sglk.engine.messages import Grammar
from sglk.errors import RequestError

STACK_BYTES = 2**20
"""Far less than the threads of a server have, so that what fits here fits there; enough for a hundred levels."""

MEMORY_BYTES = 2**30
"""Beyond what the vocabulary takes."""


def main() -> None:
    """Serve until the pipe closes."""
    descriptor, seconds = map(int, sys.argv[1:])
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, BrokenPipeError):
        serve(connection, seconds)


def serve(connection: Connection, seconds: int) -> None:
    """Take the vocabulary, then every grammar, and answer each when it is dealt with; raises EOFError at the end."""
    compiler = Compiler(connection.recv())
    threading.stack_size(STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.RLIM_INFINITY))
    connection.send(None)
    while True:
        grammar: Grammar = connection.recv()
        # Nobody handles the signal, so the system ends the process, whatever it is doing.
        signal.alarm(seconds)
        _try(compiler, grammar)
        signal.alarm(0)
        connection.send(None)


def _try(compiler: Compiler, grammar: Grammar) -> None:
    def attempt() -> None:
        # Whoever asked compiles it once more and finds out about a refusal then.
        with contextlib.suppress(RequestError):
            compiler(grammar)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
