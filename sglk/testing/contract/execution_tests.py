"""Contract of execution: without autograd, from any thread, in order, and as recorded."""

from threading import Thread

import pytest
import torch

from sglk.backends.base import DeviceBackend
from sglk.errors import BackendError
from sglk.testing.contract.copy_tests import back_from
from sglk.testing.contract.device_tests import DeviceTests


class ExecutionTests(DeviceTests):
    """`execute_runnable`, `synchronize`, `capture_graph`."""

    def test_work_runs_without_autograd_and_returns_what_it_returns(self, backend: DeviceBackend) -> None:
        assert backend.execute_runnable(lambda: (torch.is_inference_mode_enabled(), "done")) == (True, "done")
        assert not torch.is_inference_mode_enabled()

    def test_work_can_come_from_another_thread(self, backend: DeviceBackend) -> None:
        tensor = backend.allocate((8,), torch.float32)
        seen: list[bool] = []

        def work() -> None:
            tensor.fill_(3.0)
            seen.append(torch.is_inference_mode_enabled())

        thread = Thread(target=backend.execute_runnable, args=(work,))
        thread.start()
        thread.join()
        backend.synchronize()
        assert seen == [True]
        assert back_from(backend, tensor).equal(torch.full((8,), 3.0)) or backend.simulated

    def test_what_work_raises_comes_out_and_the_device_goes_on(self, backend: DeviceBackend) -> None:
        def fail() -> None:
            raise ZeroDivisionError("of its own")

        with pytest.raises(ZeroDivisionError, match="of its own"):
            backend.execute_runnable(fail)
        assert backend.execute_runnable(lambda: 1) == 1

    def test_all_work_is_done_after_synchronize(self, backend: DeviceBackend) -> None:
        x = backend.allocate((256, 256), torch.float32)

        def work() -> torch.Tensor:
            x.fill_(1 / 256)
            for _ in range(50):
                x.copy_(x @ x)
            return x

        result = backend.execute_runnable(work)
        backend.synchronize()
        assert back_from(backend, result).allclose(torch.full((256, 256), 1 / 256)) or backend.simulated

    def test_a_graph_repeats_work_on_new_values(self, backend: DeviceBackend) -> None:
        x = backend.allocate((4,), torch.float32)

        def work() -> torch.Tensor:
            return x * 2 + 1

        if not backend.capabilities.graph_capture:
            with pytest.raises(BackendError):
                backend.capture_graph(work)
            return
        backend.copy(torch.zeros(4), x)
        backend.execute_runnable(work)
        graph = backend.capture_graph(work)
        for value in (1.0, 5.0):
            backend.copy(torch.full((4,), value), x)
            result = backend.execute_runnable(graph.replay)
            assert back_from(backend, result).equal(torch.full((4,), 2 * value + 1)) or backend.simulated
