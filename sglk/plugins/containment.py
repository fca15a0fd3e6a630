"""What a plugin's module does to the whole process while it is imported, undone: the process is not the plugin's."""

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

log = logging.getLogger("sglk.plugins")

STDOUT, STDERR = 1, 2

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
"""Those by which a process is stopped, or learns of its children's end and of a lost reader."""


@contextmanager
def settings_kept(where: str) -> Iterator[None]:
    """Put torch's defaults, the handlers of signals and the working folder back as they were, with a warning.

    Not where an interruption comes out of the block: it ends the process, whose handlers are set for that by now.
    `where` names the plugin. Imports torch.
    """
    settings = list(_settings())
    before = [read() for _, read, _ in settings]
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        for (name, read, write), value in () if interrupted else zip(settings, before, strict=True):
            if (now := read()) != value:
                write(value)
                log.warning("%s changed %s to %s while it was imported; it is %s again", where, name, now, value)


@contextmanager
def output_on_stderr() -> Iterator[None]:
    """Let what is printed, from native libraries too, go where the log goes: stdout carries what the user asked for."""
    with ExitStack() as stack:
        try:
            kept = os.dup(STDOUT)
            stack.callback(os.close, kept)
            os.fstat(STDERR)
        except OSError:
            # One of them is closed, so that nothing can get lost there.
            yield
            return
        _flush_all()
        os.dup2(STDERR, STDOUT)
        stack.callback(os.dup2, kept, STDOUT)
        stack.callback(_flush_all)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


def _flush_all() -> None:
    """Write what waits for stdout, also in the buffers of C, to where it goes now."""
    # Most commands load no plugin.
    import ctypes

    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def _settings() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object]]]:
    """Yield name, reader and writer of each."""
    torch: Any = importlib.import_module("torch")
    yield "torch's default dtype", torch.get_default_dtype, torch.set_default_dtype
    yield "torch's default device", torch.get_default_device, _device_writer(torch)
    yield "torch's number of threads", torch.get_num_threads, torch.set_num_threads
    yield "torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled
    yield "the working folder", os.getcwd, os.chdir
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            yield f"the handler of {number.name}", _reader(number), _writer(number)


def _device_writer(torch: Any) -> Callable[[Any], object]:
    # A default that is set, though it be the usual one, costs every call of torch something.
    return lambda device: torch.set_default_device(None if device.type == "cpu" else device)


def _reader(number: signal.Signals) -> Callable[[], Any]:
    return lambda: signal.getsignal(number)


def _writer(number: signal.Signals) -> Callable[[Any], object]:
    # None = set by native code, which Python cannot set again.
    return lambda handler: None if handler is None else signal.signal(number, handler)
