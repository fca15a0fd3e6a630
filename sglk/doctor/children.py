"""Questions to a child process with this process's own import path, a time limit, and no way to take us with it."""

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglk.child import ChildProcess
from sglk.errors import RunError

# Not `-m`: that would put the current directory, or the folder of the doctor's own files, before what is installed.
_START = "import sys; sys.path[:] = sys.argv[4].split(':'); from sglk.doctor.probe import main; main(*sys.argv[1:4])"


def ask(
    question: str, *arguments: Any, environment: Mapping[str, str] | None = None, timeout_s: float = 90.0
) -> dict[str, Any]:
    """Return what a function of `sglk.doctor.probe` returns; RunError says why there is no answer.

    Variables of `environment` that are not set in this process are set in the child before anything is imported.
    """
    unset = {name: value for name, value in (environment or {}).items() if name not in os.environ}
    with tempfile.TemporaryDirectory(prefix="sglk-doctor-") as name:
        folder = Path(name)
        question_file, answer_file, log = folder / "arguments", folder / "answer", folder / "log"
        question_file.write_bytes(pickle.dumps(arguments))
        search = ":".join(sys.path)
        command = [sys.executable, "-c", _START, question, str(question_file), str(answer_file), search]
        with ChildProcess(command, log=log, label="the check's process", env=unset, grace_s=1.0) as child:
            try:
                child.wait_until(answer_file.exists, timeout_s=timeout_s, what="done")
            except RunError as error:
                # It may have answered and ended between two looks.
                if not answer_file.exists():
                    raise RunError(str(error).replace(f" (log: {log})", "")) from error
        answer: dict[str, Any] = json.loads(answer_file.read_text(encoding="utf-8"))
        return answer
