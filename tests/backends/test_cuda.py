"""The cuda backend as far as it can be tried without a GPU; nothing here is a verification on hardware."""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sglk.backends.accelerator import check_index
from sglk.backends.cuda import CudaBackend, capabilities_of
from sglk.backends.cuda_presence import absence, driver_version
from sglk.config.compose import compose
from sglk.config.quantization import schemes_of
from sglk.engine.loading import load_runner
from sglk.errors import BackendError, CapacityError, ConfigError
from sglk.testing.tiny import write_tiny_model
from tests.backends.on_cpu import CudaOnCpu

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"


def test_a_build_without_cuda_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        load_runner(compose("serve", ["chip=cuda", f"model={write_tiny_model(tmp_path)}"]).config)
    assert str(caught.value) == (
        f"cuda: not available (torch {torch.__version__} is built without CUDA); install a CUDA build of torch, "
        "choose chip=cpu, or rehearse with backend=sim"
    )


def test_a_build_for_rocm_is_no_build_for_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "is built for ROCm" in why(tmp_path)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_named_as_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hidden: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU" in why(tmp_path, {"CUDA_VISIBLE_DEVICES": hidden})


def test_a_missing_driver_is_told_from_a_driver_that_torch_cannot_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert why(tmp_path).startswith("no NVIDIA driver is loaded")
    write_driver(tmp_path, DRIVER)
    assert why(tmp_path).startswith(f"torch {torch.__version__} for CUDA 13.0 finds no device")


def test_the_card_of_another_vendor_is_not_taken_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch_xmlir.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "11.8")
    assert "torch_xmlir is installed, which shows the card of another vendor" in why(tmp_path)


@pytest.mark.parametrize(("text", "version"), [(DRIVER, "550.54.15"), (OPEN_DRIVER, "580.65.06")])
def test_the_driver_says_its_version(tmp_path: Path, text: str, version: str) -> None:
    assert driver_version(tmp_path) is None
    write_driver(tmp_path, text)
    assert driver_version(tmp_path) == version


def test_the_doctor_gets_the_same_reason() -> None:
    (finding,) = CudaBackend.diagnose()
    assert (finding.status, finding.why) == ("fail", f"torch {torch.__version__} is built without CUDA")


def test_asking_for_a_gpu_starts_no_cuda() -> None:
    assert list(CudaBackend.diagnose())
    assert CudaBackend.installed_versions() == {}
    assert not torch.cuda.is_initialized()


@pytest.mark.slow
def test_importing_the_backend_starts_no_cuda_and_asks_for_no_toolkit() -> None:
    code = "import sglk.backends.cuda, torch; print(torch.cuda.is_initialized())"
    environment = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graphs": True}, "has no option 'graphs'; it takes attention"),
        ({"attention": "paged"}, "attention=paged; choose one of auto, sdpa, flashinfer"),
        ({"attention": "flashinfer"}, "flashinfer is not installed in this Python; install flashinfer-python"),
    ],
)
def test_options_are_checked_before_the_device(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CudaBackend(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "count", "message"),
    [
        (0, 0, "device cuda:0 does not exist; this machine shows no cuda device to this process"),
        (2, 1, "device cuda:2 does not exist; there is only cuda:0, so name no other in groups"),
        (7, 2, "device cuda:7 does not exist; there are only cuda:0 to cuda:1, so name no other in groups"),
    ],
)
def test_a_device_that_does_not_exist(index: int, count: int, message: str) -> None:
    with pytest.raises(BackendError) as caught:
        check_index("cuda", index, count)
    assert str(caught.value) == message
    check_index("cuda", 0, 1)


def test_formats_follow_the_compute_capability() -> None:
    turing, ampere, hopper = (capabilities_of(number) for number in ((7, 5), (8, 0), (9, 0)))
    assert (turing.default_dtype, ampere.default_dtype) == ("fp16", "bf16")
    assert turing.dtypes == {"fp16", "fp32"}
    assert ampere.kv_cache_dtypes == {"fp16", "fp32", "bf16", "int8"}
    assert hopper.kv_cache_dtypes - ampere.kv_cache_dtypes == {"fp8_e4m3", "fp8_e5m2"}
    assert hopper.quantization - ampere.quantization == {"fp8"}
    # Ada has the dtype; torch multiplies in it from Hopper on.
    assert capabilities_of((8, 9)) == replace(hopper, fp8_activations=False)


@pytest.mark.parametrize(("chip", "number"), [("a100_80g", (8, 0)), ("rtx4090", (8, 9)), ("h100", (9, 0))])
def test_the_chips_declare_no_format_that_the_backend_lacks(chip: str, number: tuple[int, int]) -> None:
    declared, capabilities = compose("serve", [f"chip={chip}"]).config.chip, capabilities_of(number)
    assert set(declared.dtypes) <= capabilities.dtypes
    assert set(declared.kv_cache_dtypes) <= capabilities.kv_cache_dtypes
    assert schemes_of(declared.quantization) <= capabilities.quantization


def test_more_memory_than_there_is_names_device_and_numbers() -> None:
    with pytest.raises(CapacityError, match=rf"device cuda:0 has \d+ bytes of memory free, {2**60} were asked for"):
        CudaOnCpu().allocate((2**58,), torch.float32)


def test_work_runs_without_autograd_and_copies_convert() -> None:
    backend = CudaOnCpu()
    tensor = backend.allocate((2, 3), torch.bfloat16)
    backend.copy(torch.full((2, 3), 1.5), tensor)
    backend.synchronize()
    assert tensor.tolist() == [[1.5] * 3] * 2
    assert backend.execute_runnable(torch.is_inference_mode_enabled)
    backend.free(tensor)
    assert tensor.untyped_storage().nbytes() == 0


def test_the_device_is_described_for_records() -> None:
    info = CudaOnCpu().device_info()
    assert (info.name, info.sdk) == ("NVIDIA none", "CUDA None")
    assert info.details["compute_capability"] == "9.0"
    assert info.details["torch"] == torch.__version__


def test_what_cannot_be_recorded_is_an_error_that_the_engine_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_capture(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda *arguments, **keywords: nullcontext())
    backend = CudaOnCpu()
    assert CudaBackend.capture_graph(backend, lambda: 7).result == 7
    with pytest.raises(
        BackendError, match=r"no graph could be recorded \(operation not permitted when .* Compile with"
    ):
        CudaBackend.capture_graph(backend, no_capture)


def test_users_are_told_that_nobody_has_run_it_on_hardware() -> None:
    assert CudaBackend.verified_on is None


def why(root: Path, environment: dict[str, str] | None = None) -> str:
    finding = absence(environment or {}, root)
    assert finding is not None
    assert finding.todo
    return finding.why


def write_driver(root: Path, text: str) -> None:
    file = root / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(text)
