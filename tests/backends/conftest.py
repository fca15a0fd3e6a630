"""Kernels of other processors."""

import ctypes

import pytest

from sglk.backends.cpu_kernels import library
from sglk.backends.cpu_kernels.compiler import find_compiler


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library for processors with AVX2 and nothing wider."""
    flags = library.processor_instructions().split()
    if "avx2" not in flags or "fma" not in flags:
        pytest.skip("this processor has no AVX2")
    path = tmp_path_factory.mktemp("narrow") / "kernels.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "NATIVE", ("-march=haswell",))
        library.build(find_compiler(), path)
    return ctypes.CDLL(str(path))
