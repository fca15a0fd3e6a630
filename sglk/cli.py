"""The command line: one table of commands; a command's module is imported when it is called and not before."""

import atexit
import errno
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglk.errors import SglkError, is_out_of_memory, nearest
from sglk.interrupt import interruptible
from sglk.last_words import name_what_crashes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COMMANDS = {
    "serve": ("sglk.commands.serve", "start a model behind the OpenAI API"),
    "bench": ("sglk.commands.bench", "measure a deployment or a running URL under a workload"),
    "tune": ("sglk_tuner.command", "search runtime parameters for one chip and keep the winner as a profile"),
    "report": ("sglk_reports.command", "rank and plot what was measured"),
    "show": ("sglk.commands.show", "print the composed configuration and where each value comes from"),
    "chips": ("sglk.commands.chips", "list the chips and their figures"),
    "models": ("sglk.commands.models", "list the models and their shapes"),
    "plugins": ("sglk.commands.plugins", "list the chip plugins and what is wrong with them"),
    "doctor": ("sglk.commands.doctor", "look for what keeps a chip from serving on this machine"),
    "plan": ("sglk.commands.plan", "say whether and how a model fits, before anything starts"),
    "render": ("sglk.commands.render", "write the files that run a deployment elsewhere"),
    "simulate": ("sglk.commands.simulate", "let a deployment serve a workload on a virtual clock, without the device"),
    "calibrate": ("sglk.commands.calibrate", "measure the engine's steps on this chip, so that they can be predicted"),
    "ops": ("sglk.commands.ops", "list, test and time the ops of a model on a chip"),
    "traffic": ("sglk.commands.traffic", "show and move the traffic of a running server between device groups"),
    "advise": ("sglk.commands.advise", "name causes in a server's figures, and what to try"),
    "completion": ("sglk.commands.completion", "print a completion script for bash, zsh or fish"),
}
"""Name on the command line -> module with `run(arguments) -> exit code`, summary."""

EXTRAS = {"optuna": "tune", "pandas": "report", "plotly": "report", "scipy": "calibrate", "huggingface_hub": "hub"}
"""Packages that an extra of sglk brings."""

_YOUNG_OBJECTS = 200_000
"""Before garbage is looked for: what a command imports and composes is no garbage, and looking takes a tenth of it."""

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_BUG = 70
_FAILED = 1
_WITH_VALUE = ("--config-dir", "--command")
"""Flags whose value is the word after them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    _let_stderr_fail()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names and signs that the terminal's encoding lacks are written as Python writes them on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    name_what_crashes()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    # The interpreter's last look for garbage takes another tenth, and the system takes all of it a moment later.
    atexit.register(gc.freeze)
    try:
        with interruptible():
            code = _dispatch(words)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted.
        _drop_output()
        return _BROKEN_PIPE
    except SglkError as error:
        return _fail(str(error), error.exit_code, "--debug" in words)
    except OSError as error:
        _drop_output()
        return _fail(_system_error(error), _FAILED, "--debug" in words)
    except SystemExit:
        raise
    # The last resort: users never meet a traceback that they did not ask for. A panic in Rust becomes no Exception.
    except BaseException as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        if is_out_of_memory(error):
            return _fail(f"too little memory: {text}; free some, or take a smaller model", _FAILED, "--debug" in words)
        return _fail(f"internal error: {text}; --debug shows where, please report it", _BUG, "--debug" in words)


def _open_what_is_closed() -> None:
    """Give a process that was started with `<&-`, `>&-` or `2>&-` nothing to read, or nobody to write to.

    The file descriptor must not become that of another file, and what is printed for stderr not go to stdout.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="backslashreplace"))


class _Forgiving(io.FileIO):
    """A file that takes what it cannot write, and loses it."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Return how many bytes were taken: all, where the system refuses them or a pipe is full."""
        try:
            written: int | None = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def _let_stderr_fail() -> None:
    """Go on where a terminal is gone or a disk full: what is told beside must not end a command, nor hide its code."""
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        file = _Forgiving(sys.stderr.fileno(), "w", closefd=False)
        at_once = sys.stderr.write_through  # python -u
        sys.stderr = io.TextIOWrapper(
            file if at_once else io.BufferedWriter(file),
            sys.stderr.encoding,
            sys.stderr.errors,
            line_buffering=True,
            write_through=at_once,
        )


def _drop_output() -> None:
    """Keep the interpreter from flushing at its end into what cannot be written to."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{str(error.filename)!r}: {reason}"
    if "temporary directory" in reason:  # as Python's tempfile says
        return f"{reason[0].lower()}{reason[1:]}; let $TMPDIR name a folder that can be written to"
    if error.errno == errno.ENOENT:
        return "the current directory no longer exists; change to another"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO, errno.EFBIG):
        return f"cannot write: {reason}; make room, or write to another place"
    return f"the system refuses: {reason}; --debug shows where"


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"sglk: error: {message}", file=sys.stderr)
    return code


def _dispatch(words: list[str]) -> int:
    # `sglk --debug serve` means `sglk serve --debug`.
    position = command_position(words)
    if position is None:
        return _without_command(words)
    name = words[position]
    if name not in COMMANDS:
        raise SglkError(f"command {name!r} is unknown{nearest(name, COMMANDS) or '; commands: ' + ', '.join(COMMANDS)}")
    module_name, _ = COMMANDS[name]
    try:
        module = importlib.import_module(module_name)
        code: int = module.run([*words[:position], *words[position + 1 :]])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise SglkError(f"`sglk {name}` needs {package}; pip install 'sglk[{EXTRAS[package]}]'") from error
    return code


def command_position(words: list[str]) -> int | None:
    """Return where the command's name stands among `words`, or None."""
    before = ["", *words]
    places = enumerate(zip(before, words, strict=False))
    return next((i for i, (last, word) in places if not word.startswith("-") and last not in _WITH_VALUE), None)


def _without_command(words: list[str]) -> int:
    if "--version" in words:
        from importlib.metadata import version

        print(f"sglk {version('sglk')}")
        return 0
    unknown = [word for word in words if word not in ("--help", "-h", "--debug")]
    if unknown:
        raise SglkError(f"flag {unknown[0]!r} is unknown; see `sglk --help`")
    print(help_text())
    return 0


def help_text() -> str:
    """Return what `sglk --help` prints."""
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: sglk COMMAND [group=option ...] [key=value ...]\n\n"
        "Deploy and tune LLM inference on any chip, by configuration.\n\n"
        f"commands\n{commands}\n\n"
        "`sglk COMMAND --help` lists groups, keys and examples; `sglk --version` prints the version.\n\n"
        "examples\n"
        "  sglk serve chip=cpu model=smollm2\n"
        "  sglk show chip=l20 model=qwen32b runtime.chunked_prefill_size=4096\n"
        "  sglk tune chip=cpu model=smollm2 workload=chat"
    )
