"""The contract suite for the sim variant of every chip; three that declare different things are enough every time."""

import pytest

from sglk.backends.sim import SimBackend
from sglk.config.catalogue import chips
from sglk.config.schema import ChipConfig
from sglk.testing.contract import BackendContract, backend_contract

EVERY_TIME = ("kunlun", "h100", "cpu")


def contract_of(chip: ChipConfig) -> type[BackendContract]:
    contract = backend_contract(SimBackend, chip=chip, speed=0)
    return contract if chip.name in EVERY_TIME else pytest.mark.slow(contract)


for _entry in chips().entries:
    globals()[f"Test_{_entry.config.name}"] = contract_of(_entry.config)
