"""Grammars that may come from anybody are tried out in a process of their own, before one is compiled in the server's.

A few bytes of schema can keep the compiler busy for hours, take all memory, or recurse until the process is killed.
What does so in the trial kills the trial alone.
"""

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock

from sglk.engine.grammar_compiler import TokenTable
from sglk.engine.messages import Grammar
from sglk.errors import RequestError

TRIAL_SECONDS = 5
"""How long a grammar may take to compile. A usual one takes about a millisecond."""

END_TIMEOUT_S = 10.0


class GrammarTrial:
    """The process that tries grammars out: started for the first one, and anew for the next after one that killed it.

    It tries one after the other. It ends by itself when this process ends, or the object is no longer used.
    """

    def __init__(self, table: TokenTable, seconds: int = TRIAL_SECONDS) -> None:
        self._table = table
        self._seconds = seconds
        self._lock = Lock()
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = _nothing_runs

    def run(self, grammar: Grammar) -> None:
        """Return when `grammar` has been compiled or found invalid; raises RequestError where neither comes about."""
        with self._lock:
            try:
                self._connected().send(grammar)
            except OSError:
                # It ended between two grammars, for which neither of them is to blame.
                self._stop()
                self._connected().send(grammar)
            try:
                self._connected().recv()
            except (EOFError, OSError):
                self._stop()
                raise _too_complex(grammar, self._seconds) from None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sglk.engine.grammar_process", str(theirs.fileno()), str(self._seconds)],
                    stdin=subprocess.DEVNULL,
                    # The same modules as here, and none from whatever folder the user is in.
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
                    # Ctrl-C in the terminal is not for it.
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            self._end = weakref.finalize(self, _end, self._process, self._connection)
            self._await_start(self._connection)
        return self._connection

    def _await_start(self, connection: Connection) -> None:
        try:
            connection.send(self._table)
            connection.recv()
        except (EOFError, OSError):
            self._stop()
            message = "guided decoding is out of order: its process does not start; the server's log says why"
            raise RequestError(message, code="guided_decoding_failed", status=503) from None

    def _stop(self) -> None:
        self._end()
        self._connection = None


def _end(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait(END_TIMEOUT_S)


def _nothing_runs() -> None:
    """End nothing."""


def _too_complex(grammar: Grammar, seconds: int) -> RequestError:
    name = grammar.kind.replace("_", " ")
    message = f"the {name} is too complex: more than {seconds} s to compile, or nested too deeply; simplify it"
    return RequestError(message, param=grammar.kind, code="grammar_too_complex")
