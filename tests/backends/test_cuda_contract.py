"""The cuda backend under the contract: on a GPU where there is one, and all but the device on the processor."""

from typing import Any

from sglk.backends.cuda import CudaBackend
from sglk.testing.contract import BackendContract, backend_contract
from tests.backends.on_cpu import CudaOnCpu

TestCuda = backend_contract(CudaBackend)


class TestCudaOnCpu(BackendContract):
    def make_backend(self, **options: Any) -> CudaOnCpu:
        return CudaOnCpu(**options)
