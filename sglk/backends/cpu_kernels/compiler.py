"""Who compiles the kernels; apart from the library, so that a plan can ask without what loads one."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress


class KernelsMissing(Exception):
    """The library cannot be had here; the message says why."""


def find_compiler() -> tuple[str, ...]:
    """Return the command of the C compiler: `CC`, which may have arguments, or gcc or cc; raises KernelsMissing."""
    wanted = os.environ.get("CC", "").strip()
    for program, *arguments in _ways_to_read(wanted) if wanted else (["gcc"], ["cc"]):
        if found := shutil.which(program):
            return (found, *arguments)
    raise KernelsMissing(f"CC={wanted} is no program" if wanted else "there is no C compiler: neither gcc nor cc")


def _ways_to_read(wanted: str) -> Iterator[list[str]]:
    """Yield `wanted` as the name of one program, then as a command such as `ccache gcc`."""
    yield [wanted]
    with suppress(ValueError):  # an open quote
        yield shlex.split(wanted)
