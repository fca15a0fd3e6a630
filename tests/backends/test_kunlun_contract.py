"""The kunlun backend under the contract: on a card where there is one, and over stand-ins of the vendor's libraries."""

from typing import Any

import pytest

from sglk.backends.kunlun import KunlunBackend
from sglk.testing.contract import BackendContract, backend_contract
from tests.backends.kunlun_on_cpu import KunlunOnCpu, chip

TestKunlun = backend_contract(KunlunBackend)


@pytest.mark.usefixtures("sdk")
class TestKunlunOnCpu(BackendContract):
    def make_backend(self, **options: Any) -> KunlunOnCpu:
        return KunlunOnCpu(chip=chip(), **options)
