"""The shared library of this package's C sources: built once for each processor, kept in the user's cache."""

import ctypes
import errno
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from sglk.backends.cpu_kernels.compiler import KernelsMissing, find_compiler
from sglk.backends.cpu_kernels.signatures import adapters

logger = logging.getLogger(__name__)

FLAGS = (
    "-O2",
    "-ftree-vectorize",
    "-Wno-psabi",
    "-ffp-contract=off",
    "-pthread",
    "-shared",
    "-fPIC",
    "-std=gnu11",
    "-lm",
)
"""Products and sums are fused only where the sources say so: else one copy of a function could round as another does
not."""
NATIVE = ("-march=native", "-mcpu=native")
"""What asks for this processor's own instructions, the second where the first is not known."""
Instructions = Literal["native", "portable"]
"""Whether the library uses all instructions of this processor, or those that all of its kind have."""
COMPILE_TIMEOUT_S = 300.0
ROOM_BYTES = 4 * 2**20
"""What must be free where the library is built, which takes a part of it."""
SEAL_BYTES = 16
"""Of the digest that a library ends with."""
_SOURCES = Path(__file__).parent
_BUILDING = ".build-"


@cache
def kernels(instructions: Instructions = "native") -> ctypes.CDLL | str:
    """Return the library, built at first use, or in one line why there is none, which is also logged once."""
    try:
        return _loaded(instructions)
    except KernelsMissing as error:
        reason = " ".join(str(error).split())
        logger.info("own kernels of the cpu backend are off (%s); torch's run instead", reason)
        return reason


def _loaded(instructions: Instructions = "native") -> ctypes.CDLL:
    compiler = find_compiler()
    name = f"kernels-{_digest(compiler, instructions)}.so"
    reasons = []
    for folder in folders():
        path = folder / name
        try:
            _prepare(folder)
            if not _is_whole(path):
                build(compiler, path, instructions)
            return ctypes.CDLL(str(path))
        except OSError as error:
            # A home that is full or read-only, or one from which nothing may be run.
            reasons.append(f"{folder}: {error.strerror or error}")
    raise KernelsMissing("; ".join(reasons) or "there is no folder to keep them in")


def folders() -> Iterator[Path]:
    """Yield where the library may be kept: the user's cache, else a folder of the user's among temporary files."""
    if wanted := os.environ.get("XDG_CACHE_HOME"):
        yield Path(wanted) / "sglk"
    elif home := os.environ.get("HOME"):
        yield Path(home) / ".cache" / "sglk"
    with suppress(FileNotFoundError):
        # A container may have nowhere to write at all.
        yield Path(tempfile.gettempdir()) / f"sglk-{os.getuid()}"


def build(
    compiler: Sequence[str], path: Path, instructions: Instructions = "native", sources: Sequence[Path] | None = None
) -> None:
    """Compile into `path` by the command `compiler`; it appears whole or not at all. None = the kernels' own sources.

    Raises KernelsMissing with the compiler's first error; OSError where there is no room, before minutes of compiling.
    """
    if shutil.disk_usage(path.parent).free < ROOM_BYTES:
        raise OSError(errno.ENOSPC, "no space left")
    with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=path.parent) as folder:
        made = Path(folder) / path.name
        if sources is None:
            generated = Path(folder) / "adapters.c"
            generated.write_text(adapters())
            sources = [*sorted(_SOURCES.glob("*.c")), generated]
        complaint = ""
        for native in (*(NATIVE if instructions == "native" else ()), None):
            flags = [*FLAGS[:-1], f"-I{_SOURCES}", *((native,) if native else ())]
            command = [*compiler, *flags, *map(str, sources), "-o", str(made), FLAGS[-1]]
            complaint = _compile(command)
            if not complaint:
                _seal(made)
                made.replace(path)
                return
    raise KernelsMissing(f"{shlex.join(compiler)}: {complaint}")


def _seal(path: Path) -> None:
    """Put a digest of the library behind it, where nothing that loads it looks."""
    seal = _seal_of(path.read_bytes())
    with path.open("ab") as file:
        file.write(seal)


def _is_whole(path: Path) -> bool:
    """Return whether the library is there as it was built: of one that is cut off the process would die."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return content[-SEAL_BYTES:] == _seal_of(content[:-SEAL_BYTES])


def _seal_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=SEAL_BYTES).digest()


def _compile(command: list[str]) -> str:
    """Return the first error, empty where there was none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {COMPILE_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else f"exit code {done.returncode}")


def _prepare(folder: Path) -> None:
    """Make the folder; what others may write to is not trusted with a library."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(0, "others may write there")
    if not os.access(folder, os.W_OK) and not any(folder.glob("kernels-*.so")):
        raise PermissionError(0, "read-only")
    for left in folder.glob(f"{_BUILDING}*"):
        # Of a process that was killed while it built; another one may be removing it too.
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < time.time() - 2 * COMPILE_TIMEOUT_S:
                shutil.rmtree(left, ignore_errors=True)


def _digest(compiler: Sequence[str], instructions: Instructions) -> str:
    """Return what the library depends on: sources, flags, compiler and processor."""
    parts = [
        *FLAGS,
        adapters(),
        *compiler,
        platform.machine(),
        processor_instructions() if instructions == "native" else "",
    ]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted((*_SOURCES.glob("*.c"), *_SOURCES.glob("*.h"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def processor_instructions() -> str:
    """Return the vector instructions of the processor, as the kernel lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
