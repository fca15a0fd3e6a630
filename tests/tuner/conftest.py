import os
from pathlib import Path

import pytest

from sglk.bench import target
from tests.tuner.lab import Lab
from tests.tuner.run_tune import fake_command


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tmp_path)
    made = Lab(tmp_path)
    monkeypatch.setattr(target, "serve_command", fake_command)
    monkeypatch.setitem(os.environ, "FAKE_ENGINE_SCRIPT", str(made.script_file))
    return made
