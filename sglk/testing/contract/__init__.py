"""The tests that every DeviceBackend has to pass, for vendors to run on their own.

In a test module of a plugin this is all:

    from sglk.testing.contract import backend_contract

    TestMyChip = backend_contract(MyBackend)

Keywords are handed to what makes the backend. Where it raises BackendError, the device is absent and the tests are
skipped with its reason. To change or add something, derive from BackendContract. A simulated backend is held to shapes,
dtypes, accounting and errors, not to values. Needs pytest.
"""

from collections.abc import Callable
from typing import Any

import pytest

for _part in ("capability_tests", "copy_tests", "execution_tests", "memory_tests", "op_tests", "serving_tests"):
    pytest.register_assert_rewrite(f"sglk.testing.contract.{_part}")

from sglk.backends.base import DeviceBackend  # noqa: E402
from sglk.testing.contract.capability_tests import CapabilityTests  # noqa: E402
from sglk.testing.contract.copy_tests import CopyTests  # noqa: E402
from sglk.testing.contract.execution_tests import ExecutionTests  # noqa: E402
from sglk.testing.contract.memory_tests import MemoryTests  # noqa: E402
from sglk.testing.contract.op_tests import OpTests  # noqa: E402
from sglk.testing.contract.serving_tests import ServingTests  # noqa: E402

__all__ = ["BackendContract", "backend_contract"]


class BackendContract(MemoryTests, CopyTests, ExecutionTests, CapabilityTests, OpTests, ServingTests):
    """All of them; a derived class, whose name begins with `Test`, defines `make_backend`."""


def backend_contract(factory: Callable[..., DeviceBackend], **keywords: Any) -> type[BackendContract]:
    """Return the test class of the backend that `factory(**keywords)` makes."""

    class Contract(BackendContract):
        def make_backend(self, **options: Any) -> DeviceBackend:
            return factory(**keywords, **options)

    return Contract
