"""What torch's module of a device is asked for memory, and what goes on the backend's stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sglk.backends.accelerator import TorchAccelerator
from sglk.backends.base import DeviceInfo
from sglk.errors import CapacityError

GIB = 2**30


class DeviceModule:
    """As much of `torch.cuda` as is used: 8 GiB, of which torch's allocator holds 3 and uses 1."""

    def __init__(self) -> None:
        self.current: list[Any] = []
        self.waited: list[Any] = []

    def Stream(self, device: torch.device) -> Any:
        module = self

        class Stream:
            def synchronize(self) -> None:
                module.waited.append(self)

        return Stream()

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    device = stream

    def synchronize(self, device: torch.device) -> None:
        self.waited.append(device)

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 4 * GIB, 8 * GIB

    def memory_reserved(self, device: torch.device) -> int:
        return 3 * GIB

    def memory_allocated(self, device: torch.device) -> int:
        return GIB

    def max_memory_reserved(self, device: torch.device) -> int:
        return 3 * GIB


class Card(TorchAccelerator):
    name = "card"
    device_kind = "cpu"

    def device_info(self) -> DeviceInfo:
        return DeviceInfo("card")


class CardWithoutStream(Card):
    own_stream = False


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> DeviceModule:
    """What torch says drives the device."""
    module = DeviceModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return module


@pytest.mark.usefixtures("module")
def test_memory_that_torch_holds_without_use_is_free() -> None:
    memory = Card(0).memory_info()
    assert (memory.total, memory.free) == (8 * GIB, 6 * GIB)
    assert Card(0).peak_memory_bytes() == 3 * GIB


@pytest.mark.usefixtures("module")
def test_no_room_in_one_piece_is_a_lack_of_capacity_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(CapacityError) as caught:
        Card(1).allocate((5 * GIB,), torch.uint8)
    assert str(caught.value) == (
        f"device card:1 has {6 * GIB} bytes of memory free, {5 * GIB} were asked for in one piece; lower the need"
    )


@pytest.mark.parametrize("kind", [Card, CardWithoutStream])
def test_all_work_is_on_the_stream_and_waiting_is_for_it(kind: type[Card], module: DeviceModule) -> None:
    backend = kind(0)
    wanted = backend._stream if kind.own_stream else backend.device
    seen = backend.execute_runnable(lambda: list(module.current))
    assert seen == [wanted]
    assert module.current == []
    backend.synchronize()
    assert module.waited == [wanted]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(("pinned", "asynchronous"), [(True, True), (False, False)])
def test_only_copies_of_pinned_memory_return_before_they_are_done(
    monkeypatch: pytest.MonkeyPatch, pinned: bool, asynchronous: bool
) -> None:
    asked = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: pinned)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda dst, src, non_blocking: asked.append(non_blocking))
    Card(0).copy(torch.zeros(3), torch.zeros(3))
    assert asked == [asynchronous]
