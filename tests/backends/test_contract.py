"""Our own backends under the contract that every vendor's is held to."""

from sglk.backends.cpu import CpuBackend
from sglk.testing.contract import backend_contract

TestCpu = backend_contract(CpuBackend, num_threads=1)
