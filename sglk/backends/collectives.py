"""Sums and gathers over several devices, by whichever library the chip has for them."""

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


class Work(Protocol):
    """An exchange that is under way."""

    def wait(self) -> object:
        """Return when the result can be used by what follows on the device's stream."""


class ProcessGroup(Protocol):
    """What is needed of one of torch.distributed's: `ProcessGroupGloo`, `ProcessGroupNCCL`, a vendor's own."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        """Replace the one tensor in `tensors` by its sum over all ranks."""

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor]) -> Work:
        """Fill the one list in `output_tensors` with what each rank has as the one tensor in `input_tensors`."""


@runtime_checkable
class AsynchronousGroup(ProcessGroup, Protocol):
    """One that works in the order of the device's stream: that an exchange has failed is found out later."""

    def failure(self) -> str | None:
        """Return why the exchanges so far mean nothing, None where they do; asked once a step's results are read."""


def join_gloo(store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Return a group of processes of this machine, which talk over its loopback interface alone."""
    # Not every build of torch has it, and a model in one piece does without.
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return cast(ProcessGroup, ProcessGroupGloo(store, rank, size, options))
