"""`sglk tune` in a process of its own, with the fake engine in place of `sglk serve`."""

import sys
from pathlib import Path

from sglk.bench import target
from sglk.cli import main

FAKE = Path(__file__).with_name("fake_engine.py")


def fake_command(overrides: list[str], config_dir: object = None) -> list[str]:
    return [sys.executable, "-S", str(FAKE), *target.serve_overrides(overrides)]


if __name__ == "__main__":
    target.serve_command = fake_command
    sys.exit(main(["tune", *sys.argv[1:]]))
