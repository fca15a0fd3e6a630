"""Throwaway distributions: a package and its metadata as an installer leaves them, in a folder of the path."""

import textwrap
from pathlib import Path

import sglk

ROOT = Path(sglk.__file__).parents[1]

BACKEND = """\
from sglk.backends.cpu import CpuBackend

class Backend(CpuBackend):
    api_version = 1
"""
"""A sound plugin."""


def install(site: Path, name: str, code: str, entry_points: str, version: str = "1.2") -> Path:
    """Install distribution `dummy-<name>` with package `dummy_<name>`, and return the folder of its metadata."""
    package = site / f"dummy_{name}"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(textwrap.dedent(code), encoding="utf-8")
    return write_metadata(site, name, entry_points, version)


def write_metadata(site: Path, name: str, entry_points: str, version: str = "1.2") -> Path:
    info = site / f"dummy_{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dummy-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    return info


def install_backend(site: Path, name: str, code: str = BACKEND, version: str = "1.2") -> Path:
    """Install a distribution whose backend `<name>` is the attribute `Backend`."""
    return install(site, name, code, f"[sglk.backends]\n{name} = dummy_{name}:Backend\n", version)


def install_conf(site: Path, name: str, files: dict[str, str]) -> None:
    """Install a distribution that brings `files` of configuration."""
    install(site, name, "raise RuntimeError('never imported')", f"[sglk.conf]\n{name} = dummy_{name}\n")
    for file, text in files.items():
        path = site / f"dummy_{name}" / "conf" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def environment(site: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a child that sees the distributions of `site`."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{site}:{ROOT}", "OMP_NUM_THREADS": "1", **variables}
