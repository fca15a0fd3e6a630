"""Native libraries that do not fit this system: real ones, damaged, so that the loader's own words are read."""

import shutil
import sysconfig
from pathlib import Path

MODULE_INIT = b"PyModuleDef_Init"
"""A symbol that extension modules take from Python."""


def damaged_library(folder: Path, replaced: bytes, by: bytes) -> Path:
    """Copy an installed extension module into `folder` with one of its names, of the same length, replaced."""
    assert len(by) == len(replaced)
    original = _extension_with(replaced)
    copy = folder / original.name
    shutil.copy(original, copy)
    copy.write_bytes(original.read_bytes().replace(b"\0" + replaced + b"\0", b"\0" + by + b"\0"))
    return copy


def _extension_with(name: bytes) -> Path:
    folders = [Path(sysconfig.get_path("platstdlib")) / "lib-dynload", Path(sysconfig.get_path("purelib"))]
    found = (file for folder in folders for file in sorted(folder.rglob("*.so")) if file.stat().st_size < 2**20)
    return next(file for file in found if b"\0" + name + b"\0" in file.read_bytes())
