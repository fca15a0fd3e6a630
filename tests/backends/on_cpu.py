"""What lets the backend of an accelerator run on the processor: everything of it but the device."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

from sglk.backends.accelerator import TorchAccelerator
from sglk.backends.cuda import CudaBackend
from sglk.backends.host_memory import host_memory, peak_resident_bytes
from sglk.backends.memory import MemoryInfo
from tests.engine.recording import RecordingBackend, Tape


class OnCpu(TorchAccelerator):
    """Put it before an accelerator's class: tensors are then on the cpu."""

    device_kind: ClassVar[str] = "cpu"
    own_stream: ClassVar[bool] = False

    def memory_info(self) -> MemoryInfo:
        return host_memory()

    def peak_memory_bytes(self) -> int:
        return peak_resident_bytes()

    def synchronize(self) -> None:
        return

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext()


class CudaOnCpu(OnCpu, CudaBackend):
    """The cuda backend as it would be on a GPU of some compute capability, without the GPU."""

    api_version = 1
    capability: ClassVar[tuple[int, int]] = (9, 0)

    capture_graph = RecordingBackend.capture_graph  # type: ignore[assignment]

    def __init__(self, **options: Any) -> None:
        options.setdefault("attention", "sdpa")
        super().__init__(**options)
        self.capabilities = replace(self.capabilities, host_memory=True)
        self.tapes: list[Tape[Any]] = []

    @classmethod
    def absence(cls) -> None:
        return None

    def properties(self) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA none", multi_processor_count=0, total_memory=self.memory_info().total)

    def compute_capability(self) -> tuple[int, int]:
        return self.capability
