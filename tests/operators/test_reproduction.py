"""Scripts that show a failure again: they run alone, fail as the test did, and pass once the op is right."""

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import known_ops
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.comparison import mismatch
from sglk.operators.reproduction import Failure, write_script
from tests.operators import throwaway


def failure_of(backend: CpuBackend, op: str) -> Failure:
    """Return the first case in which the plugin's own implementation of `op` is wrong."""
    implementation = backend.ops.implementations(OPS[op])[0]
    for case in matrix(backend.capabilities):
        if case.op == op and implementation.unmet(case.traits) is None:
            problem = mismatch(case, implementation, backend)
            assert problem is not None, case
            return Failure(case, implementation, problem)
    raise AssertionError(op)


def broken_backend(**options: str) -> CpuBackend:
    module = importlib.import_module(throwaway.MODULE)
    backend: CpuBackend = module.ThrowawayBackend(**options)
    return backend


@pytest.mark.parametrize("op", known_ops())
def test_a_script_fails_as_the_test_did_and_passes_without_the_fault(
    op: str, plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = broken_backend(broken=op)
    failure = failure_of(backend, op)
    script = write_script(failure, backend, {"broken": op}, tmp_path)
    assert run_in_process(script) == 1
    assert capsys.readouterr().out.splitlines()[-1] == failure.problem
    imported = set(re.findall(r"^(?:from|import) (\w+)", script.read_text(), re.MULTILINE))
    assert imported - sys.stdlib_module_names <= {"torch", "numpy", "sglk", throwaway.MODULE}
    own = set(re.findall(r"^from (sglk[\w.]*)", script.read_text(), re.MULTILINE))
    assert all(module.startswith("sglk.backends.") for module in own), own
    repaired = script.with_name("repaired.py")
    repaired.write_text(script.read_text().replace("OPTIONS = {", "OPTIONS = {'repaired': True, "))
    assert run_in_process(repaired) == 0, capsys.readouterr().out


def run_in_process(script: Path) -> object:
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(script), run_name="__main__")
    return ending.value.code


def test_a_script_runs_alone_and_shows_what_the_op_raises(plugin: Path, tmp_path: Path) -> None:
    backend = broken_backend(broken="raising")
    failure = failure_of(backend, "linear")
    assert failure.problem == "raises RuntimeError: the kernel found no workspace"
    script = write_script(failure, backend, {"broken": "raising"}, tmp_path / "failures")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([sys.executable, script], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{throwaway.MODULE}.py" in done.stderr
    assert "RuntimeError: the kernel found no" in done.stderr


def test_a_case_has_one_script_however_often_it_fails(plugin: Path, tmp_path: Path) -> None:
    backend = broken_backend(broken="rope")
    failure = failure_of(backend, "rope")
    first = write_script(failure, backend, {}, tmp_path)
    assert write_script(failure, backend, {}, tmp_path) == first
    other = Failure(OpCase("rope", {**failure.case.shape, "tokens": 77}), failure.implementation, failure.problem)
    assert write_script(other, backend, {}, tmp_path) != first


CARELESS = """
from sglk.backends import reference
from sglk.backends.cpu import CpuBackend


def rope(x, cos, sin):
    out = reference.rope.reference(x, cos, sin)
    x.zero_()
    return out


class Careless(CpuBackend):
    def __init__(self, **options):
        super().__init__(num_threads=1)
        self.ops.register(reference.rope, "careless", rope)
"""


def test_a_script_shows_an_argument_that_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "careless_chip.py").write_text(CARELESS)
    monkeypatch.syspath_prepend(tmp_path)
    backend = importlib.import_module("careless_chip").Careless()
    failure = failure_of(backend, "rope")
    assert failure.problem == "overwrites argument 0, which its caller goes on to use"
    assert run_in_process(write_script(failure, backend, {}, tmp_path)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == failure.problem
