"""`sglk serve` as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sglk.server.announcement import READY
from tests.server.serving import wait_until


class Process:
    """A started `sglk serve` and its output."""

    def __init__(self, model: Path, folder: Path, *settings: str, without: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-m", "sglk", "serve", f"model={model}", *settings]
        # Python runs a module of this name first.
        missing = f"import sys\nsys.modules.update(dict.fromkeys({list(without)}))\n"
        (folder / "sitecustomize.py").write_text(missing)
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("wb") as output:
            self.child = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, "PYTHONPATH": paths}
            )

    def text(self) -> str:
        return self.log.read_text()

    def wait_ready(self) -> str:
        """Wait for the line to parent processes and return its URL."""
        wait_until(lambda: READY in self.text() or self.child.poll() is not None, timeout_s=240)
        lines = [line for line in self.text().splitlines() if line.startswith(READY)]
        assert lines, self.text()
        url: str = json.loads(lines[0].removeprefix(READY))["url"]
        return url
