"""Building the kernels of the cpu backend: once, whole, and with torch's ops where it cannot be done."""

import ctypes
import logging
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglk.backends import reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels import library
from sglk.backends.cpu_kernels.compiler import find_compiler
from sglk.backends.cpu_kernels.library import KernelsMissing, build, folders, kernels

built = pytest.mark.skipif(isinstance(kernels(), str), reason="the kernels cannot be built here")


@pytest.fixture
def _fresh() -> Iterator[None]:
    kernels.cache_clear()
    yield
    kernels.cache_clear()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


@pytest.mark.usefixtures("_fresh")
def test_without_a_compiler_torch_runs_and_the_choice_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with caplog.at_level(logging.INFO):
        choice = CpuBackend().ops.select(reference.linear, dtype="fp32", in_features=8, out_features=8).choice
        CpuBackend()
    assert (choice.provider, choice.fallback) == ("cpu", False)
    assert choice.reason == "cpu_kernels: not built, there is no C compiler: neither gcc nor cc"
    assert sum("own kernels of the cpu backend are off" in record.message for record in caplog.records) == 1


@pytest.mark.usefixtures("_fresh")
def test_what_the_compiler_says_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = script(tmp_path / "broken", "echo 'x.c:1: error: no such thing' >&2; exit 1")
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert kernels() == f"{compiler}: x.c:1: error: no such thing"
    assert list((tmp_path / "cache" / "sglk").iterdir()) == []


@built
@pytest.mark.usefixtures("_fresh")
def test_what_a_killed_build_left_goes_and_a_running_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copying = copying_compiler(tmp_path)
    kernels.cache_clear()
    monkeypatch.setenv("CC", str(copying))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    left, running = (tmp_path / "cache" / "sglk" / name for name in (".build-left", ".build-running"))
    for folder in (left, running):
        folder.mkdir(parents=True)
    tmp_path.joinpath("cache", "sglk").chmod(0o700)
    os.utime(left, (0, 0))
    assert isinstance(kernels(), ctypes.CDLL)
    assert running.exists()
    assert not left.exists()


def copying_compiler(tmp_path: Path) -> Path:
    """Return a compiler that is done at once: it gives the library that is there, and notes each first argument."""
    there = kernels()
    assert isinstance(there, ctypes.CDLL)
    copy = f'echo "$1" >> "{tmp_path}/runs"; while [ "$1" != -o ]; do shift; done; cp {there._name} "$2"'
    return script(tmp_path / "copying", copy)


@built
def test_processes_that_build_at_once_all_get_a_whole_library(tmp_path: Path) -> None:
    compiler, path = copying_compiler(tmp_path), tmp_path / "kernels-x.so"
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(build, [str(compiler)], path) for _ in range(4)]:
            done.result()
    assert ctypes.CDLL(str(path)).sglk_product
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".build")] == []


@built
def test_it_is_built_once_and_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(copying_compiler(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        assert isinstance(library._loaded(), ctypes.CDLL)
    assert (tmp_path / "runs").read_text() == "-O2\n"


@built
@pytest.mark.parametrize("name", ["copying -O1", "some where/copying", "'some where/copying' -O1"])
def test_the_compiler_may_have_arguments_and_spaces(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `CC="ccache gcc"`."""
    (tmp_path / "some where").mkdir()
    (tmp_path / "some where" / "copying").symlink_to(copying_compiler(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CC", name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert isinstance(library._loaded(), ctypes.CDLL)
    assert (tmp_path / "runs").read_text() == ("-O1\n" if "-O1" in name else "-O2\n")


@pytest.mark.parametrize("name", ["no-such-thing gcc", "'gcc", "''"])
def test_what_is_no_compiler_is_said_as_it_was_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", name)
    with pytest.raises(KernelsMissing, match=re.escape(f"CC={name} is no program")):
        find_compiler()


@built
@pytest.mark.parametrize("left", [0, 0.3, 0.999])
def test_what_was_cut_off_is_built_again(left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(copying_compiler(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = Path(library._loaded()._name)
    whole = there.read_bytes()
    # Another file: this process has the first one in use.
    there.unlink()
    there.write_bytes(whole[: int(left * len(whole))])
    assert isinstance(library._loaded(), ctypes.CDLL)
    assert there.read_bytes() == whole
    assert (tmp_path / "runs").read_text() == "-O2\n-O2\n"


@pytest.mark.usefixtures("_fresh")
def test_without_a_folder_to_write_to_torch_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CC", str(script(tmp_path / "compiler", "exit 1")))
    monkeypatch.setattr("tempfile._candidate_tempdir_list", list)
    monkeypatch.setattr("tempfile.tempdir", None)
    choice = CpuBackend().ops.select(reference.linear, dtype="fp32", in_features=8, out_features=8).choice
    assert choice.provider == "cpu"
    assert choice.reason == "cpu_kernels: not built, there is no folder to keep them in"


@built
def test_a_home_that_cannot_be_written_to_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(copying_compiler(tmp_path)))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert isinstance(library._loaded(), ctypes.CDLL)
    assert [path.suffix for path in (tmp_path / f"sglk-{os.getuid()}").iterdir()] == [".so"]


@built
def test_a_home_that_is_full_is_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(copying_compiler(tmp_path)))
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    usage = shutil.disk_usage(tmp_path)
    full = {home / "sglk"}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0 if folder in full else 2**30))
    assert isinstance(library._loaded(), ctypes.CDLL)
    (there,) = (temporary / f"sglk-{os.getuid()}").iterdir()
    there.unlink()
    full.add(there.parent)
    with pytest.raises(KernelsMissing, match=r"home/sglk: no space left; .*temporary.*: no space left"):
        library._loaded()
    assert (tmp_path / "runs").read_text() == "-O2\n"


@built
def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for folder in folders():
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(KernelsMissing, match="others may write there"):
        library._loaded()
