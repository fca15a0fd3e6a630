"""Sums over several devices, by whichever library the chip has for them."""

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


class Work(Protocol):
    """A sum that is under way."""

    def wait(self) -> object:
        """Return when the result can be used by what follows on the device's stream."""


class ProcessGroup(Protocol):
    """What is needed of one of torch.distributed's: `ProcessGroupGloo`, `ProcessGroupNCCL`, a vendor's own."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        """Replace the one tensor in `tensors` by its sum over all ranks."""


@runtime_checkable
class AsynchronousGroup(ProcessGroup, Protocol):
    """One whose sums are in the order of the device's stream: that one has failed is found out later."""

    def failure(self) -> str | None:
        """Return why the sums so far mean nothing, None where they do; asked when a step's results have been read."""


def join_gloo(store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Return a group of processes of this machine, which talk over its loopback interface alone."""
    # Not every build of torch has it, and a model in one piece does without.
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return cast(ProcessGroup, ProcessGroupGloo(store, rank, size, options))
