"""A backend is loaded by its name; one that cannot be is refused with its origin and the root cause."""

import logging
import platform
import sys
from pathlib import Path

import pytest

import sglk
from sglk import plugins
from sglk.config.compose import compose
from sglk.errors import BackendError, CapacityError
from tests.plugins.distributions import BACKEND, install_backend, write_metadata


def refusal(name: str) -> str:
    with pytest.raises(BackendError) as caught:
        plugins.load_backend(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plugin_is_loaded_by_its_entry_point(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_backend(site, "toy")
    with caplog.at_level(logging.INFO, "sglk.plugins"):
        made = plugins.create_backend("toy", num_threads=1)
    assert type(made).__module__ == "dummy_toy"
    origin = f"dummy-toy 1.2 at {site}"
    assert caplog.messages == [
        f"loading backend 'toy' ({origin}) from dummy_toy:Backend",
        "Backend toy loaded successfully",
    ]
    assert compose("serve", ["backend=toy"]).config.backend.name == "toy"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise ImportError('no kernels')", "ImportError: no kernels; check that its libraries fit"),
        (
            "raise OSError('/opt/libk.so: undefined symbol: xpu_init')",
            "/opt/libk.so: undefined symbol: xpu_init; the library that should have xpu_init is another version than",
        ),
        (
            'raise OSError("/lib/libc.so.6: version `GLIBC_9.9\' not found (required by /opt/libk.so)")',
            "(required by /opt/libk.so); it needs glibc 9.9 and this system has ",
        ),
        (
            "raise OSError('libxpu.so.1: cannot open shared object file: No such file or directory')",
            "install the driver or SDK that brings libxpu.so.1, or add its folder to LD_LIBRARY_PATH",
        ),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("raise BaseException('a panic in Rust')", "BaseException: a panic in Rust"),
        ("import no_such_vendor_library", "'no_such_vendor_library'; install no_such_vendor_library into "),
        ("from sglk.plugins import gone", "has no such part; install versions of sglk and dummy-broken that fit"),
        ("import sglk.gone", "has no such part; install versions of sglk and dummy-broken that fit"),
        ("Backed = 1", "AttributeError: module 'dummy_broken' has no attribute 'Backend'; the entry point wants"),
        (
            "try:\n    raise OSError('device gone')\nexcept OSError as e:\n    raise ImportError('no kernels') from e",
            "ImportError: no kernels; root cause: OSError: device gone;",
        ),
        (
            "def broken(:",
            f"dummy_broken/__init__.py, line 1 may not be for Python {platform.python_version()}; ",
        ),
        (
            "class Group(Exception):\n    exceptions = (OSError('no libxpu'),)\nraise Group('3 reasons')",
            "Group: 3 reasons; root cause: OSError: no libxpu;",
        ),
        ("import sglk.plugins\nsglk.plugins.load_backend('broken')", "asks for backend 'broken', its own, while it is"),
        (
            "class Proxy(type):\n    def __getattribute__(self, name): raise OSError('no driver')\n"
            "class Backend(metaclass=Proxy): ...",
            "failed to load from 'dummy_broken:Backend': OSError: no driver;",
        ),
        (
            "from sglk.backends.base import Capabilities\nCapabilities(frozenset(), frozenset(), warp_size=32)",
            f"this sglk ({sglk.__version__}) has another Capabilities; install versions of sglk and dummy-broken that",
        ),
        ("Backend = None", "is refused: it is None, not a DeviceBackend class"),
        ("class Backend:\n    api_version = 1", "Backend is no subclass of sglk.backends.base.DeviceBackend"),
        (
            "from sglk.backends.base import DeviceBackend\nclass Backend(DeviceBackend):\n    api_version = 1",
            "Backend lacks allocate, copy, device_info, execute_runnable, free, memory_info, synchronize, which",
        ),
        (
            BACKEND.replace("= 1", "= 99"),
            "for version 99 of the DeviceBackend contract and sglk has version 1; upgrade",
        ),
        (BACKEND.replace("= 1", "= '1'"), "Backend.api_version is '1', not a whole number; sglk has version 1"),
        (BACKEND.replace("= 1", "= True"), "Backend.api_version is True, not a whole number"),
        (BACKEND.replace("api_version = 1", "pass"), "so write `api_version = 1` into the class"),
    ],
)
def test_a_broken_plugin_is_named_with_its_distribution_and_cause(site: Path, code: str, cause: str) -> None:
    install_backend(site, "broken", code)
    install_backend(site, "sound")
    message = refusal("broken")
    assert "'broken'" in message
    assert f"dummy-broken 1.2 at {site}" in message
    assert cause in message
    assert plugins.load_backend("sound")


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return None", "is refused: it made None, not a DeviceBackend"),
        ("raise OSError('no /dev/toy0')", "failed to start: OSError: no /dev/toy0;"),
        ("raise SystemExit(3)", "failed to start: SystemExit: 3;"),
        ("raise BaseException('a panic')", "failed to start: BaseException: a panic;"),
        ("return Old()", "was written for version 0 of the DeviceBackend contract and sglk has version 1; upgrade the"),
        ("return Bare()", "Bare has no capabilities, device"),
        ("return Loose()", "Loose.device is 'toy:0', not of type device"),
    ],
)
def test_a_factory_that_makes_no_backend_is_named(site: Path, body: str, cause: str) -> None:
    code = f"""
from sglk.backends.cpu import CpuBackend

class Old(CpuBackend):
    api_version = 0

class Bare(CpuBackend):
    api_version = 1
    capabilities = property()
    device = property()

class Loose(CpuBackend):
    api_version = 1

    def __init__(self):
        super().__init__(num_threads=1)
        self.device = "toy:0"

def Backend(**options):
    {body}
"""
    install_backend(site, "made", code)
    with pytest.raises(BackendError) as caught:
        plugins.create_backend("made", index=0)
    assert f"backend 'made' (dummy-made 1.2 at {site})" in str(caught.value)
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    ("table", "flaw"),
    [
        ("['fp32'], SOME", "dtypes is ['fp32'], not a frozenset of names"),
        ("SOME, 'fp32'", "kv_cache_dtypes is 'fp32', not a frozenset of names"),
        ("{'float32'}, SOME", "dtypes has 'float32', which is none of fp32, bf16, fp16"),
        ("SOME, {'fp32', 'fp8'}", "kv_cache_dtypes has 'fp8', which is none of fp32, bf16, fp16, int8, fp8_e4m3, "),
        ("SOME, SOME, quantization={'int8'}", "quantization has 'int8', which is none of w8a8, w8a16, w4a16, fp8"),
        ("SOME, SOME, page_sizes=16", "page_sizes is 16, not a tuple of whole numbers above 0"),
        ("SOME, SOME, page_sizes=(16, 0)", "page_sizes is (16, 0), not a tuple of whole numbers above 0"),
        ("SOME, SOME, page_sizes=(True,)", "page_sizes is (True,), not a tuple of whole numbers above 0"),
        ("SOME, SOME, graph_capture='no'", "graph_capture is 'no', not True or False"),
        ("SOME, SOME, int8_group_size=0", "int8_group_size is 0, not a whole number above 0, nor -1 for all inputs"),
        ("SOME, SOME, collectives=True", "collectives is True, not the name of a library, nor None"),
        ("SOME, SOME, default_dtype=['fp32']", "default_dtype is ['fp32'], which is not among its dtypes: fp32"),
        ("{'fp16'}, {'fp16'}", "default_dtype is 'fp32', which is not among its dtypes: fp16"),
        ("{'fp32', 'fp16'}, SOME", "kv_cache_dtypes lacks 'fp16', which kv_cache_dtype=auto means beside that dtype"),
    ],
)
def test_a_table_of_capabilities_that_cannot_be_meant_is_the_plugins_fault(site: Path, table: str, flaw: str) -> None:
    """Else users would read of a `runtime.dtype` that they never wrote."""
    made = f"    capabilities = Capabilities({table})\n"
    install_backend(
        site, "odd", f"from sglk.backends.base import Capabilities\nSOME = frozenset({{'fp32'}})\n{BACKEND}{made}"
    )
    with pytest.raises(BackendError) as caught:
        plugins.create_backend("odd", num_threads=1)
    assert f"backend 'odd' (dummy-odd 1.2 at {site}) is refused: Backend.capabilities.{flaw}" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "body", "flaw"),
    [
        ("memory_info(self)", "(8, 4)", "memory_info() returns (8, 4), not a MemoryInfo of numbers of bytes"),
        ("memory_info(self)", "MemoryInfo(4, 8)", "returns MemoryInfo(total=4, free=8), of which more is free than"),
        ("device_info(self)", "'card'", "device_info() returns 'card', not a name"),
        ("num_devices(self, ranks)", "-1", "num_devices(1) returns -1, not a number above 0, nor None"),
        ("num_devices(self, ranks)", "os.open('/none', 0)", "num_devices(1) raises FileNotFoundError: [Errno 2]"),
        ("allocate(self, shape, dtype)", "None", "allocate() returns None, not a tensor"),
        (
            "allocate(self, shape, dtype)",
            "torch.empty(2, 4)",
            "returns torch.float32 [2, 4] on cpu where torch.float32 [2, 3] on cpu was asked for",
        ),
        (
            "allocate(self, shape, dtype)",
            "torch.empty(shape, dtype=dtype, device='meta')",
            "returns torch.float32 [2, 3] on meta where torch.float32 [2, 3] on cpu was asked for",
        ),
        ("execute_runnable(self, runnable)", "None", "execute_runnable() returns None, not what its runnable returns"),
        ("copy(self, src, dst)", "dst.fill_(7)", "copy() to the device and back makes [[7.0, 7.0, 7.0], [7.0, 7.0, "),
        ("free(self, tensor)", "tensor.nope", "allocate() raises AttributeError: 'Tensor' object has no attribute"),
    ],
)
def test_a_device_that_does_not_do_its_work_is_the_plugins_fault(site: Path, method: str, body: str, flaw: str) -> None:
    code = f"import os\nimport torch\nfrom sglk.backends.base import MemoryInfo\n{BACKEND}"
    install_backend(site, "lazy", f"{code}    def {method}: return {body}\n")
    with pytest.raises(BackendError) as caught:
        plugins.create_backend("lazy", num_threads=1)
    assert f"backend 'lazy' (dummy-lazy 1.2 at {site}) is refused: Backend." in str(caught.value)
    assert flaw in str(caught.value)


FULL = """
import torch
from sglk.backends.cpu import CpuBackend

held = []

class Backend(CpuBackend):
    api_version = 1
    name = "full"

    def allocate(self, shape, dtype):
        held.append(super().allocate(shape, dtype))
        return held[-1]

    def free(self, tensor):
        held.pop()

    def copy(self, src, dst):
        raise RuntimeError("{error}")
"""


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            "CUDA out of memory",
            CapacityError,
            "the device of backend 'full' has no memory left for six numbers: RuntimeError: CUDA out of memory; end"
            " what holds it, or take another device",
        ),
        (
            "no lane",
            BackendError,
            "backend 'full' (dummy-full 1.2 at {site}) is refused: Backend.copy() raises Runtime",
        ),
    ],
)
def test_a_full_device_is_not_the_plugins_fault_and_no_try_leaves_it_fuller(
    site: Path, error: str, kind: type[Exception], told: str
) -> None:
    install_backend(site, "full", FULL.replace("{error}", error))
    with pytest.raises(kind) as caught:
        plugins.create_backend("full", num_threads=1)
    assert str(caught.value).startswith(told.replace("{site}", str(site)))
    assert sys.modules["dummy_full"].held == []


def test_what_a_device_returns_is_compared_by_value(site: Path) -> None:
    install_backend(site, "copier", f"{BACKEND}    def execute_runnable(self, run): return tuple(list(run()))\n")
    assert plugins.create_backend("copier", num_threads=1)


def test_a_factory_without_the_keywords_of_the_contract_is_told_them(site: Path) -> None:
    install_backend(site, "narrow", "def Backend(index): ...")
    with pytest.raises(
        BackendError, match=r"takes index, num_threads, fallback, deny, chip and those of backend.option"
    ):
        plugins.create_backend("narrow", index=0, chip=None)


def test_what_a_plugin_says_in_an_error_of_sglk_stays_as_it_is(site: Path) -> None:
    install_backend(site, "polite", "from sglk.errors import *\ndef Backend(**_): raise BackendError('no card')")
    with pytest.raises(BackendError, match=r"^no card$"):
        plugins.create_backend("polite")


def test_an_interrupt_during_an_import_is_the_users(site: Path) -> None:
    install_backend(site, "slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        plugins.load_backend("slow")


def test_a_plugin_may_load_other_backends_and_register_more_while_it_is_imported(site: Path) -> None:
    install_backend(
        site,
        "friend",
        "from sglk.plugins import load_backend, register_backend\nCpu = load_backend('cpu')\n"
        "class Backend(Cpu):\n    api_version = 1\n"
        "register_backend('friend', Backend)\nregister_backend('second', Backend)\n",
    )
    first = plugins.load_backend("friend")
    assert plugins.load_backend("friend") is first
    assert plugins.load_backend("second") is first


def test_plugins_that_ask_for_each_other_are_named(site: Path) -> None:
    for name, other in (("left", "right"), ("right", "left")):
        install_backend(site, name, f"from sglk.plugins import load_backend\nload_backend('{other}')\n{BACKEND}")
    assert "module 'dummy_left' asks for backend 'left', its own, while it is being imported" in refusal("left")


def test_metadata_without_files_says_what_to_reinstall(site: Path) -> None:
    write_metadata(site, "stale", "[sglk.backends]\nstale = dummy_stale:Backend\n")
    assert "its metadata stands, its files do not; reinstall dummy-stale, or `pip uninstall" in refusal("stale")


def test_a_deleted_checkout_of_an_editable_install_is_named(site: Path) -> None:
    info = write_metadata(site, "stale", "[sglk.backends]\nstale = dummy_stale:Backend\n")
    (info / "direct_url.json").write_text('{"url": "file:///gone/a%20b", "dir_info": {"editable": true}}')
    (site / "dummy_stale.pth").write_text("/gone/a b\n")
    assert "it was installed editable from '/gone/a b', which is gone; reinstall dummy-stale" in refusal("stale")


def test_a_folder_that_hides_the_plugin_is_named(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_backend(site, "toy")
    here = tmp_path / "here" / "dummy_toy"
    here.mkdir(parents=True)
    (here / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(here.parent)
    assert f"'{here}/__init__.py' hides the module of dummy-toy; rename it, or start from another" in refusal("toy")


def test_a_working_copy_in_place_of_the_installed_plugin_is_mentioned(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_backend(site, "toy")
    here = tmp_path / "here" / "dummy_toy"
    here.mkdir(parents=True)
    (here / "__init__.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(here.parent)
    assert plugins.load_backend("toy")
    assert f"is imported from {here}/__init__.py, not from where it is installed" in caplog.text


def test_a_package_that_several_distributions_share_is_hidden_by_none(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other" / "dummy_vendor" / "tools").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "other")
    write_metadata(site, "shared", "[sglk.backends]\nshared = dummy_vendor.chip:Backend\n")
    (site / "dummy_vendor").mkdir()
    (site / "dummy_vendor" / "chip.py").write_text(BACKEND)
    assert plugins.load_backend("shared").__module__ == "dummy_vendor.chip"
    assert not caplog.messages


def test_an_unknown_backend_lists_what_was_searched_and_found(site: Path) -> None:
    install_backend(site, "toyota", "raise ImportError('not imported for a listing')")
    message = refusal("toyotta")
    assert "did you mean 'toyota'? searched" in message
    assert "'sglk.backends'" in message
    assert "cpu (built-in)" in message
    assert f"toyota (dummy-toyota 1.2 at {site}" in message
    assert "another environment" in message
