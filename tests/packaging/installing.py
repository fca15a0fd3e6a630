"""Distributions that are built and installed as users build and install them, seen from another folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Return what the command prints; it has to succeed, and sees no more than its interpreter does."""
    seen = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=seen)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fresh_python(folder: Path) -> Path:
    """Return a fresh environment's interpreter that sees our dependencies, but not this checkout."""
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv").glob("lib/python3*/site-packages"))
    # A path file inside a directory named by a path file is not read, so the editable install stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


def built(source: Path, kind: str, folder: Path) -> Path:
    """Build the `wheel` or `sdist` of `source` into `folder`, which has nothing else, and return it."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder, source, cwd=folder.parent)
    (distribution,) = folder.iterdir()
    return distribution


def install(python: Path, what: Path, *options: str) -> None:
    """Install without any look at an index."""
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*command, "--no-build-isolation", *options, what, cwd=python.parents[2])
