"""Every plugin that is found and what becomes of it when it is imported, tried where it can do no harm.

A vendor's module loads native libraries, which print, hang or end their process. So backends are imported in children
of this process, each in one of its own.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from sglk.child import ChildProcess
from sglk.errors import RunError
from sglk.plugins.claims import backend_plugins, refusal
from sglk.plugins.conf_folders import clash_text, clashes, conf_folders
from sglk.plugins.plugin import CODE, Plugin

TIMEOUT_S = 30.0
"""How long the import of one backend may take; all are imported at the same time."""
_START_S = 60.0
"""How long torch may take, which comes first."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A process that forks has no threads; numpy's library starts some when it is imported."""

State = Literal["ok", "import failed", "refused"]


@dataclass(frozen=True)
class Report:
    """What became of one plugin."""

    plugin: Plugin
    state: State
    reason: str | None = None
    """Why it cannot be used."""
    path: str | None = None
    """File that was imported; the folder of configuration; else where the distribution is installed."""
    api_version: int | str | None = None
    verified_on: str | None = None
    """Hardware that the backend has been run on; None = not verified."""
    simulated: bool = False
    """Whether the backend computes nothing."""


def probe_plugins(timeout_s: float = TIMEOUT_S) -> list[Report]:
    """Return a report on every backend and every `conf` folder that is offered.

    Raises RunError when no child process can be started.
    """
    return [*probe_backends(timeout_s), *_conf_reports()]


def probe_backends(timeout_s: float = TIMEOUT_S) -> list[Report]:
    """Return a report on every backend; each import may take `timeout_s`."""
    plugins = backend_plugins()
    reports = {plugin: _unprobed(plugin, plugins) for plugin in plugins}
    open_questions = [plugin for plugin, report in reports.items() if report is None]
    reports.update(zip(open_questions, _in_children(open_questions, timeout_s), strict=True))
    return [report for report in reports.values() if report is not None]


def _unprobed(plugin: Plugin, plugins: Sequence[Plugin]) -> Report | None:
    if (why := refusal(plugin, plugins)) is not None:
        return Report(plugin, "refused", why, _place(plugin))
    # No child has it; whoever registered it has imported it, too.
    return Report(plugin, "ok") if plugin.source == CODE else None


def _conf_reports() -> list[Report]:
    folders = conf_folders()
    reports = {}
    for folder in folders:
        place = str(folder.path) if folder.path is not None else _place(folder.plugin)
        state: State = "ok" if folder.refusal is None else "refused"
        reports[folder.plugin] = Report(folder.plugin, state, folder.refusal, place)
    for file, bringers in clashes(folders).items():
        for folder in bringers:
            reports[folder.plugin] = Report(folder.plugin, "refused", clash_text(file, bringers), str(folder.path))
    return list(reports.values())


def _in_children(plugins: Sequence[Plugin], timeout_s: float) -> list[Report]:
    if not plugins:
        return []
    with TemporaryDirectory(prefix="sglk-plugins-") as name:
        folder = Path(name)
        questions = [{**asdict(plugin), "location": str(plugin.location or "")} for plugin in plugins]
        (folder / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
        silence = _ask(folder, timeout_s)
        return [_answer(plugin, folder / f"{number}.json", silence) for number, plugin in enumerate(plugins)]


def _ask(folder: Path, timeout_s: float) -> str:
    """Run the children; return what to say of a plugin that got no answer."""
    # -u: what is printed before a process dies is among its last words.
    command = [sys.executable, "-u", "-m", "sglk.plugins.probe_process", str(folder), str(timeout_s)]
    # The same modules as here, and none from whatever folder the user is in.
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1", **_ONE_THREAD}
    log = folder / "log"
    with ChildProcess(command, log=log, label="the process that imports plugins", env=env, grace_s=0.0) as child:
        try:
            child.wait_until((folder / "done").exists, timeout_s=_START_S + timeout_s, what="done")
        except RunError as error:
            return " ".join(str(error).split()).replace(f" (log: {log})", "")
    return "its process left no answer"


def _answer(plugin: Plugin, file: Path, silence: str) -> Report:
    try:
        answer = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Report(plugin, "import failed", silence, _place(plugin))
    return Report(
        plugin, **{"path": _place(plugin), **{key: value for key, value in answer.items() if value is not None}}
    )


def _place(plugin: Plugin) -> str | None:
    return str(plugin.location) if plugin.location is not None else None
