"""What users of plugins meet on the command line: whole processes, started as they start them."""

import subprocess
import sys
from pathlib import Path

import pytest

from sglk.testing.tiny import write_tiny_model
from tests.plugins.distributions import environment, install_backend

NO_CUDA = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def sglk(*words: str, cwd: Path, env: dict[str, str], safe: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command line; unless `safe`, with the current folder first on Python's path, as `python -m` has it."""
    command = [sys.executable, *(["-P"] if safe else []), "-m", "sglk", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_a_plugin_that_fails_ends_the_start_with_one_line(tmp_path: Path) -> None:
    site = tmp_path / "site"
    code = "import sys\nprint('vendor banner')\ntry:\n    raise OSError('undefined symbol: go')\nfinally:\n    pass"
    install_backend(site, "toy", code)
    model = write_tiny_model(tmp_path / "model")
    # Of the chip's own accord, as `backend=auto` has it: no other backend takes its place.
    words = ("serve", f"model={model}", "chip.backend=toy", "server.port=0")
    done = sglk(*words, cwd=tmp_path, env=environment(site))
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith(
        f"sglk: error: backend 'toy' (dummy-toy 1.2 at {site}) failed to load from 'dummy_toy:Backend"
    )
    assert "OSError: undefined symbol: go" in error
    assert "Traceback" not in done.stderr
    assert "SGLK_READY" not in done.stdout


@pytest.mark.slow
def test_a_folder_of_the_plugins_name_in_the_current_folder_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_backend(site, "toy")
    here = tmp_path / "here"
    (here / "dummy_toy").mkdir(parents=True)
    (here / "dummy_toy" / "__init__.py").write_text("")
    done = sglk("plugins", cwd=here, env=environment(site), safe=False)
    assert done.returncode == 1
    assert (
        f"{here}/dummy_toy/__init__.py' hides the module of dummy-toy; rename it, or start from another" in done.stdout
    )


def row(printed: str, name: str) -> list[str]:
    return next(line.split() for line in printed.splitlines() if line.startswith(f"{name} "))


def homes(tmp_path: Path) -> list[dict[str, str]]:
    (tmp_path / "empty").mkdir(exist_ok=True)
    return [{}, *({"CUDA_HOME": home} for home in ("", "/nonexistent", str(tmp_path / "empty")))]


def test_nothing_asks_for_cuda_while_it_is_imported(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, sys
import torch

def forbidden(*arguments, **keywords):
    raise AssertionError('CUDA is asked for at import')

for name in ('is_available', 'device_count', 'init', '_lazy_init', 'get_device_properties', 'current_device'):
    setattr(torch.cuda, name, forbidden)
import sglk
names = [module.name for module in pkgutil.walk_packages(sglk.__path__, 'sglk.')]
for name in names:
    # The platform for SGLang is imported by SGLang alone.
    if not name.endswith('__main__') and not name.startswith('sglk.upstream.sglang_platform.'):
        importlib.import_module(name)
print(len(names))
"""
    env = {**environment(tmp_path), **NO_CUDA, "CUDA_HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 150


def test_a_machine_without_cuda_shows_and_imports_whatever_cuda_home_says(tmp_path: Path) -> None:
    for home in homes(tmp_path):
        env = {**environment(tmp_path), **NO_CUDA, **home}
        code = "import sglk, sys; print(sglk.__version__, 'torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-P", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout.split()[-1], done.stderr) == (0, "False", "")
    shown = sglk("show", "chip=cpu", "--json", cwd=tmp_path, env=env)
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.slow
def test_a_machine_without_cuda_lists_and_serves_whatever_cuda_home_says(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    code = (
        "from sglk import LLM, SamplingParams; import sys;"
        f"answers = LLM(model={str(model)!r}).generate(['a'], SamplingParams(max_new_tokens=2, ignore_eos=True));"
        "print(len(answers[0].token_ids))"
    )
    for home in homes(tmp_path):
        env = {**environment(tmp_path), **NO_CUDA, **home}
        done = subprocess.run([sys.executable, "-P", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert "ok" in row(sglk("plugins", cwd=tmp_path, env=env).stdout, "cpu")
