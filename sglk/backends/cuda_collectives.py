"""Sums over several GPUs by NCCL; not verified on hardware."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch

from sglk.backends.collectives import ProcessGroup, Work

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
ABORT_SUMS = "2"
"""Of torch's ways to handle a rank that is gone or hangs: end the sums. The default ends the process, in which the
server and the replicas on other devices are."""


class NcclSums:
    """The AsynchronousGroup of ranks with one GPU each.

    A sum is in stream order, so the host does not wait for it. NCCL's watchdog ends one that takes too long; what was
    computed from it means nothing, which `failure` then says.
    """

    def __init__(self, group: Any) -> None:
        """`group` is a ProcessGroupNCCL."""
        self._group = group

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        """Replace the one tensor in `tensors` by its sum over all ranks."""
        return cast(Work, self._group.allreduce(tensors))

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor]) -> Work:
        """Fill the one list in `output_tensors` with what each rank has as the one tensor in `input_tensors`."""
        return cast(Work, self._group.allgather(output_tensors, input_tensors))

    def failure(self) -> str | None:
        """Return what the watchdog has found, such as `TIMEOUT`, or None."""
        found = self._group.get_error().name
        return None if found == "SUCCESS" else f"NCCL reports {found}"


def join_nccl(store: "Store", rank: int, size: int, timeout: timedelta, device: torch.device) -> ProcessGroup:
    """Return the group of ranks that meet in `store`, connected; `device` is that of this one, and the process's."""
    # Not in every build of torch.
    from torch.distributed import ProcessGroupNCCL

    os.environ.setdefault(ERROR_HANDLING, ABORT_SUMS)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    group = ProcessGroupNCCL(store, rank, size, options)
    # At the first sum it would be otherwise, within a step.
    group.eager_connect_single_device(device)
    return NcclSums(group)
