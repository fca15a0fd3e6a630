"""Who compiles the kernels; apart from the library, so that a plan can ask without what loads one."""

import os
import shutil


class KernelsMissing(Exception):
    """The library cannot be had here; the message says why."""


def find_compiler() -> str:
    """Return the C compiler: `CC`, or gcc or cc of the path; raises KernelsMissing."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else ("gcc", "cc"):
        if name and (found := shutil.which(name)):
            return found
    raise KernelsMissing(f"CC={wanted} is no program" if wanted else "there is no C compiler: neither gcc nor cc")
