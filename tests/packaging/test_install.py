"""The distribution works where it is not developed: wheel, sdist and editable, seen from another folder."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return a fresh environment's interpreter that sees our dependencies, but not this checkout."""
    venv.create(tmp_path / "venv", with_pip=False)
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    # A path file inside a directory named by a path file is not read, so the editable install stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return tmp_path / "venv" / "bin" / "python"


def _install(python: Path, what: Path, *options: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    _run(*command, "--no-build-isolation", *options, what, cwd=python.parents[2])


def _check(python: Path, cwd: Path, where: Path) -> None:
    names = "sglk, sglk_tuner, sglk_reports"
    origins = _run(python, "-c", f"import {names}; print(*(m.__file__ for m in ({names})))", cwd=cwd)
    assert all(Path(origin).is_relative_to(where) for origin in origins.split()), origins
    shown = _run(python.parent / "sglk", "show", "chip=kunlun", "model=qwen32b", cwd=cwd)
    assert "chunked_prefill_size: 3072" in shown


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_built_distribution_shows_a_configuration_from_another_folder(kind: str, python: Path, tmp_path: Path) -> None:
    _run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", tmp_path / "dist", cwd=ROOT)
    (built,) = (tmp_path / "dist").iterdir()
    _install(python, built)
    _check(python, tmp_path, tmp_path / "venv")


@pytest.mark.slow
def test_editable_install_shows_a_configuration_from_another_folder(python: Path, tmp_path: Path) -> None:
    _install(python, ROOT, "--editable")
    _check(python, tmp_path, ROOT)
