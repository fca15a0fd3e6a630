"""The process that imports plugins for `sglk.plugins.probe`: `python -m sglk.plugins.probe_process FOLDER TIMEOUT_S`.

torch is imported once; then each plugin gets a fork of this process, whose end, whatever it is, is its own.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sglk.plugins.causes import cause, in_words, module_path
from sglk.plugins.contract import api_version, import_contract, misfit, verified_on
from sglk.plugins.load import imported
from sglk.plugins.plugin import BUILT_IN, Plugin

_CHECK_S = 0.01


def main(folder: Path, timeout_s: float) -> None:
    """Answer every question of `questions.json` with a file of its number, and say `done`."""
    questions = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    plugins = [Plugin(**{**question, "location": _path(question["location"])}) for question in questions]
    try:
        import_contract()
    except KeyboardInterrupt:
        raise
    # A torch that is broken is broken for all of them.
    except BaseException as error:  # noqa: BLE001
        for number in range(len(plugins)):
            _write(folder, number, {"state": "import failed", "reason": f"torch cannot be imported: {in_words(error)}"})
    else:
        _try_all(plugins, folder, timeout_s)
    (folder / "done").touch()


def examine(plugin: Plugin) -> dict[str, Any]:
    """Import `plugin` and return what a Report says of it."""
    own = plugin.source == BUILT_IN
    try:
        factory = imported(plugin)
        why = misfit(factory, own=own)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        return {"state": "import failed", "reason": cause(error, plugin)}
    version = import_contract().API_VERSION if own else api_version(factory)
    return {
        "state": "ok" if why is None else "refused",
        "reason": why,
        "path": str(path) if (path := module_path(plugin.module)) is not None else None,
        "api_version": version if version is None or type(version) is int else repr(version),
        "verified_on": verified_on(factory),
        "simulated": getattr(factory, "simulated", False) is True,
    }


def _try_all(plugins: list[Plugin], folder: Path, timeout_s: float) -> None:
    running = {_fork(plugin, number, folder): number for number, plugin in enumerate(plugins)}
    deadline = time.monotonic() + timeout_s
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            _tell_end(status, running.pop(pid), folder)
        elif time.monotonic() > deadline:
            break
        elif pid == 0:
            time.sleep(_CHECK_S)
    for pid, number in running.items():
        _kill(pid)
        _fail(folder, number, f"its import did not come to an end within {timeout_s:g} s")


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It has not come as far as having a group of its own.
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _fork(plugin: Plugin, number: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # What the import starts is to be found again when it must be killed.
        os.setsid()
        log = os.open(_log(folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _write(folder, number, examine(plugin))
        code = 0
    finally:
        # At once: threads and exit handlers of the plugin are not waited for.
        os._exit(code)


def _tell_end(status: int, number: int, folder: Path) -> None:
    if (folder / f"{number}.json").exists():
        return
    code = os.waitstatus_to_exitcode(status)
    end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    _fail(folder, number, f"its import took the process with it, which {end}")


def _fail(folder: Path, number: int, reason: str) -> None:
    log = _log(folder, number)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    said = [" ".join(line.split()) for line in lines if line.strip()]
    last_words = f" (its last words: {said[-1]})" if said else ""
    _write(folder, number, {"state": "import failed", "reason": f"{reason}{last_words}"})


def _write(folder: Path, number: int, answer: dict[str, Any]) -> None:
    draft = folder / f"{number}.draft"
    draft.write_text(json.dumps(answer), encoding="utf-8")
    draft.replace(folder / f"{number}.json")


def _log(folder: Path, number: int) -> Path:
    return folder / f"{number}.log"


def _path(text: str) -> Path | None:
    return Path(text) if text else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
