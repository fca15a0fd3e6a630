"""The distribution works where it is not developed: wheel, sdist and editable, seen from another folder."""

from pathlib import Path

import pytest

from tests.packaging.installing import ROOT, built, fresh_python, install, run


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return fresh_python(tmp_path)


def _check(python: Path, cwd: Path, where: Path) -> None:
    names = "sglk, sglk_tuner, sglk_reports"
    origins = run(python, "-c", f"import {names}; print(*(m.__file__ for m in ({names})))", cwd=cwd)
    assert all(Path(origin).is_relative_to(where) for origin in origins.split()), origins
    shown = run(python.parent / "sglk", "show", "chip=kunlun", "model=qwen32b", cwd=cwd)
    assert "chunked_prefill_size: 3072" in shown


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_built_distribution_shows_a_configuration_from_another_folder(kind: str, python: Path, tmp_path: Path) -> None:
    install(python, built(ROOT, kind, tmp_path / "dist"))
    _check(python, tmp_path, tmp_path / "venv")


@pytest.mark.slow
def test_editable_install_shows_a_configuration_from_another_folder(python: Path, tmp_path: Path) -> None:
    install(python, ROOT, "--editable")
    _check(python, tmp_path, ROOT)
