"""The command line as a process: fast, quiet and with one line per error."""

import contextlib
import json
import os
import pty
import shlex
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sglk import cli
from sglk.errors import ConfigError, RunError

HEAVY = ("torch", "hydra", "omegaconf", "optuna", "pandas", "fastapi", "plotly", "transformers", "rich", "yaml")


def sglk(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, "-m", "sglk", *words], capture_output=True, text=True, env=env, cwd=cwd)


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded once `code` has run."""
    quiet = "contextlib.redirect_stdout(io.StringIO())"
    lines = (
        "import sys, io, json, contextlib",
        f"with {quiet}:",
        f"    {code}",
        "print(json.dumps(list(sys.modules)))",
    )
    script = "\n".join(lines)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_signs_that_the_output_cannot_show_are_written_as_escapes(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)

    shown = sglk("show", "model='/data/\N{CJK UNIFIED IDEOGRAPH-6A21}/m'", "--yaml")

    assert shown.returncode == 0, shown.stderr
    assert (r"/data/\u6a21/m" in shown.stdout) == (encoding != "utf-8")


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after("from sglk.cli import main; main(['--help'])")
    assert "sglk" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("words", [["show"], ["chips"], ["models"], ["completion", "--words", "serve", ""]])
def test_no_light_command_imports_torch(words: list[str]) -> None:
    loaded = modules_after(f"from sglk.cli import main; assert main({words!r}) == 0")
    assert loaded.isdisjoint({"torch", "optuna", "pandas", "fastapi", "transformers"})


def test_a_port_that_is_taken_shows_before_torch_is_imported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        loaded = modules_after(f"from sglk.cli import main; assert main(['serve', 'server.port={port}']) == 2")
    assert "torch" not in loaded


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, summary) in cli.COMMANDS.items():
        assert f"  {name}" in text
        assert summary in text


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: sglk {command}")


def test_an_error_is_one_line_and_exit_code_2() -> None:
    result = sglk("show", "chip=kunlum")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "sglk: error: chip=kunlum is unknown; did you mean 'kunlun'? `sglk chips` lists all\n"


def test_debug_shows_the_traceback() -> None:
    result = sglk("--debug", "show", "chip=kunlum")
    assert result.returncode == 2
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("`sglk chips` lists all\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serv"], "command 'serv' is unknown; did you mean 'serve'?"),
        (["frobnicate"], "command 'frobnicate' is unknown; commands: serve, bench,"),
        (["--verbose"], "flag '--verbose' is unknown"),
        (["show", "--config-dir"], "--config-dir needs a folder"),
    ],
)
def test_unknown_words_have_a_way_out(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sglk ")


def run_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def run(arguments: list[str]) -> int:
        raise error

    module = types.ModuleType("sglk_test_command")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglk_test_command", module)
    monkeypatch.setitem(cli.COMMANDS, "test", ("sglk_test_command", "a command for tests"))
    return cli.main(["test"])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("wrong"), 2, "sglk: error: wrong\n"),
        (RunError("failed"), 1, "sglk: error: failed\n"),
        (KeyboardInterrupt(), 130, ""),
        (ModuleNotFoundError("No module named 'optuna'", name="optuna"), 2, "pip install 'sglk[tune]'"),
        (ModuleNotFoundError("No module named 'pandas.core'", name="pandas.core"), 2, "pip install 'sglk[report]'"),
        (OSError(13, "Permission denied", "runs"), 1, "sglk: error: 'runs': Permission denied\n"),
        (RuntimeError("alloc: can't allocate memory"), 1, "sglk: error: too little memory: RuntimeError: alloc: can't"),
        (MemoryError(), 1, "sglk: error: too little memory: MemoryError:; free some, or take a smaller model\n"),
        (BaseException("panic"), 70, "sglk: error: internal error: BaseException: panic; --debug shows where"),
        (ValueError("two\nlines"), 70, "sglk: error: internal error: ValueError: two lines; --debug shows where"),
    ],
)
def test_whatever_a_command_raises_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    assert run_raising(monkeypatch, error) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") <= 1


@pytest.mark.parametrize("words", [["models", "--json"], ["models"], ["show"]])
def test_a_closed_pipe_is_quiet(words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run([sys.executable, "-m", "sglk", *words], stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert result.stderr == ""
    assert result.returncode == 141


@pytest.mark.parametrize("words", [["show"], ["chips"], ["--help"]])
def test_a_full_device_is_an_error_of_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([sys.executable, "-m", "sglk", *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr == "sglk: error: cannot write: No space left on device; make room, or write to another place\n"


@pytest.mark.parametrize(("words", "code"), [(["show"], 0), (["serv"], 2), (["show", "foo=1", "--debug"], 2)])
@pytest.mark.parametrize("gone", [False, True])
def test_what_cannot_be_told_on_stderr_leaves_the_exit_code(words: list[str], code: int, gone: bool) -> None:
    master, terminal = pty.openpty()
    os.close(master)
    with Path("/dev/full").open("w") as full:
        told = terminal if gone else full
        result = subprocess.run([sys.executable, "-m", "sglk", *words], stdout=subprocess.DEVNULL, stderr=told)
    os.close(terminal)
    assert result.returncode == code


@pytest.mark.parametrize("flags", [(), ("-u",)])
def test_a_pipe_that_is_full_and_never_waits_leaves_the_exit_code(flags: tuple[str, ...]) -> None:
    reader, pipe = os.pipe()
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    result = subprocess.run([sys.executable, *flags, "-m", "sglk", "serv"], stderr=pipe)
    os.close(pipe)
    os.close(reader)
    assert result.returncode == 2


def test_without_buffers_words_are_out_at_once() -> None:
    script = "import os, sys; from sglk import cli; cli.main(['--version']); sys.stderr.write('no'); os._exit(3)"
    result = subprocess.run([sys.executable, "-u", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (3, "no")


def test_a_terminal_without_width_is_shown_something() -> None:
    master, terminal = pty.openpty()
    env = {**os.environ, "COLUMNS": "0", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "sglk", "chips"], stdout=terminal, env=env):
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(master, 4096):
                said += piece
    os.close(master)
    assert b"h100" in said


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_without_stderr_its_lines_do_not_get_into_the_output(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m sglk show no_such_key=1 {closed}"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")


def test_closed_output_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m sglk show >&-"
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_no_folder_for_temporary_files_is_named_as_that() -> None:
    code = (
        "import sys, tempfile; from sglk import cli; tempfile._candidate_tempdir_list = lambda: ['/proc/x'];"
        " cli._dispatch = lambda words: tempfile.gettempdir(); sys.exit(cli.main([]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = "no usable temporary directory found in ['/proc/x']; let $TMPDIR name a folder that can be written to"
    assert (result.returncode, result.stderr) == (1, f"sglk: error: {said}\n")


@pytest.mark.parametrize("words", ["show --config-dir conf", "serve server.port=0", "ops list"])
def test_a_folder_that_is_gone_is_named_where_it_is_needed(words: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    sglk = f"{shlex.quote(sys.executable)} -m sglk"
    command = f'cd {shlex.quote(str(gone))} && rmdir "$PWD" && {sglk} show --json >/dev/null && {sglk} {words}'
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "sglk: error: the current directory no longer exists; change to another\n"


def test_flags_with_a_value_may_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--config-dir", str(tmp_path), "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "serve"
    assert cli.main(["--command", "bench", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "bench"


def test_show_from_another_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    result = sglk("show", "chip=kunlun", "model=qwen32b", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "chunked_prefill_size: 3072" in result.stdout
    assert list(tmp_path.iterdir()) == []
