"""Questions that only a child process may answer: they import torch and vendors' libraries, which can do anything.

Run by `sglk.doctor.children`; imported by nothing, so that the doctor itself stays without torch.
"""

import ctypes
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sglk.backends.device_work import copy_flaw
from sglk.config.schema import ServeConfig
from sglk.engine.loading import make_backend
from sglk.errors import SglkError
from sglk.plugins import load_backend
from sglk.plugins.contract import verified_on

Answer = dict[str, Any]


def torch_build() -> Answer:
    """Return what torch was built for and which devices it finds."""
    return {
        "version": torch.__version__,
        "file": torch.__file__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "architectures": torch.cuda.get_arch_list() if torch.cuda.is_available() else [],
        "devices": [_cuda_device(index) for index in range(torch.cuda.device_count())],
        "reason": _why_no_cuda(),
    }


def _cuda_device(index: int) -> Answer:
    major, minor = torch.cuda.get_device_capability(index)
    return {"name": torch.cuda.get_device_name(index), "architecture": f"sm_{major}{minor}"}


def _why_no_cuda() -> str | None:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return None


def backend_class(name: str) -> Answer:
    """Import one plugin and return what its class declares and finds, without making a device."""
    try:
        factory = load_backend(name)
    except SglkError as error:
        return {"error": str(error)}
    answer: Answer = {"module": factory.__module__, "file": getattr(sys.modules[factory.__module__], "__file__", None)}
    failed: dict[str, str] = {}
    for key, question in _CLASS_QUESTIONS.items():
        try:
            answer[key] = question(factory)
        # A vendor's code, which may raise anything where its libraries are absent.
        except Exception as error:  # noqa: BLE001, PERF203
            failed[key] = _one_line(error)
    return {**answer, "failed": failed}


_CLASS_QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "verified_on": verified_on,
    "requires": lambda factory: dict(getattr(factory, "requires", {})),
    # A function that makes backends has no class to ask before there is a device.
    "versions": lambda factory: dict(factory.installed_versions()) if hasattr(factory, "installed_versions") else {},
    "findings": lambda factory: list(map(asdict, factory.diagnose())) if hasattr(factory, "diagnose") else [],
}


def devices(deployments: list[tuple[str, ServeConfig, int]]) -> Answer:
    """Make one device of each deployment, by its name, and return what it is called and the size of its memory."""
    return {name: _device(name, config, rank) for name, config, rank in deployments}


def _device(name: str, config: ServeConfig, rank: int) -> Answer:
    print(f"making {name}", flush=True)
    try:
        backend = make_backend(config, rank)
        if (flaw := copy_flaw(backend)) is not None:
            return {"error": flaw}
        memory, info = backend.memory_info(), backend.device_info()
    except SglkError as error:
        return {"error": str(error)}
    return {"total": memory.total, "free": memory.free, "name": info.name}


def libraries(files: list[str]) -> Answer:
    """Load each library with all its symbols, beside torch's; return the loader's complaint for each."""
    return dict(_load_each(files))


def _load_each(files: list[str]) -> Iterator[tuple[str, str]]:
    for file in files:
        # The last word in the log, should the library end this process.
        print(file, flush=True)
        try:
            ctypes.CDLL(file, mode=os.RTLD_NOW)
        except OSError as error:
            yield file, _one_line(error)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


_QUESTIONS: dict[str, Callable[..., Answer]] = {
    function.__name__: function for function in (torch_build, backend_class, devices, libraries)
}


def main(question: str, arguments: str, answer: str) -> None:
    """Answer one question: pickled arguments are read from one file, JSON is written to another."""
    result = _QUESTIONS[question](*pickle.loads(Path(arguments).read_bytes()))
    draft = Path(f"{answer}.draft")
    draft.write_text(json.dumps(result), encoding="utf-8")
    draft.replace(answer)
