"""Native libraries that do not fit this system are named with what they lack, when they are loaded or first used."""

from pathlib import Path

import pytest

from sglk import plugins
from sglk.config.compose import compose
from sglk.errors import BackendError, RunError
from sglk.server.serve import load_deployment
from sglk.testing.tiny import write_tiny_model
from tests.plugins.distributions import install_backend
from tests.plugins.libraries import MODULE_INIT, damaged_library


def refusal(name: str) -> str:
    with pytest.raises(BackendError) as caught:
        plugins.load_backend(name)
    return str(caught.value)


def test_a_symbol_that_no_library_has_is_named_with_its_file(site: Path, tmp_path: Path) -> None:
    library = damaged_library(tmp_path, MODULE_INIT, b"PyModuleDef_Gone")
    install_backend(site, "native", f"import ctypes\nctypes.CDLL({str(library)!r}, mode=2)")
    message = refusal("native")
    assert f"OSError: {library}: undefined symbol: PyModuleDef_Gone; the library that should have" in message
    assert "this Python has torch 2." in message


def test_a_c_library_that_is_too_old_is_named_with_what_is_needed(site: Path, tmp_path: Path) -> None:
    library = damaged_library(tmp_path, b"GLIBC_2.2.5", b"GLIBC_9.2.5")
    install_backend(site, "native", f"import ctypes\nctypes.CDLL({str(library)!r})")
    message = refusal("native")
    assert "version `GLIBC_9.2.5' not found" in message
    assert str(library) in message
    assert "it needs glibc 9.2.5 and this system has 2." in message


def test_a_library_that_is_not_there_is_named(site: Path) -> None:
    install_backend(site, "native", "import ctypes\nctypes.CDLL('libsglk_no_such.so.7')")
    message = refusal("native")
    assert "install the driver or SDK that brings libsglk_no_such.so.7, or add its folder to LD_LIBRARY" in message


def test_a_file_that_is_no_library_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "libtext.so").write_text("an answer of a proxy, saved under the library's name")
    install_backend(site, "native", f"import ctypes\nctypes.CDLL({str(tmp_path / 'libtext.so')!r})")
    assert f"OSError: {tmp_path}/libtext.so: " in refusal("native")


LAZY = """
import ctypes
from sglk.backends import reference, sampling_ops
from sglk.backends.cpu import CpuBackend

def lazy(*args, **kwargs):
    ctypes.CDLL({library!r}, mode=2)

class Backend(CpuBackend):
    api_version = 1

    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.ops.register({op}, "vendor", lazy)
"""


@pytest.mark.parametrize("op", ["reference.rms_norm", "reference.attention_decode", "sampling_ops.sample"])
def test_a_library_that_is_loaded_by_the_first_call_of_an_op_is_named_before_the_port_opens(
    site: Path, tmp_path: Path, op: str
) -> None:
    library = damaged_library(tmp_path, MODULE_INIT, b"PyModuleDef_Gone")
    install_backend(site, "lazy", LAZY.format(library=str(library), op=op))
    words = [f"model={write_tiny_model(tmp_path / 'model')}", "backend=lazy", "profiles=none"]
    with pytest.raises(RunError) as caught:
        load_deployment(compose("serve", words).config)
    name = op.partition(".")[2]
    assert f"op '{name}' of 'vendor' failed: OSError: {library}: undefined symbol: PyModuleDef_Gone;" in str(
        caught.value
    )
    assert str(caught.value).endswith(")")
