"""Sums over several cards by BKCL, which torch knows as `xccl`."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch.distributed

from sglk.backends.collectives import ProcessGroup
from sglk.errors import BackendError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

NAME = "xccl"


def join_bkcl(store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Return a group of ranks with one card each.

    Looked for in this order: what the runtime has registered as `xccl`, torch's own class of that name, and NCCL's,
    which the CUDA-compatible build of torch passes on to BKCL.
    """
    if (creator := _registered()) is not None:
        return cast(ProcessGroup, creator(store, rank, size, timeout))
    for name in ("ProcessGroupXCCL", "ProcessGroupNCCL"):
        if (kind := getattr(torch.distributed, name, None)) is not None:
            options = kind.Options()
            options._timeout = timeout
            return cast(ProcessGroup, kind(store, rank, size, options))
    raise BackendError(
        f"this build of torch has no {NAME} to add over several cards with; set runtime.tp_size=1, or install the "
        "vendor's build"
    )


def _registered() -> Callable[..., Any] | None:
    plugin = getattr(torch.distributed.Backend, "_plugins", {}).get(NAME.upper())
    return None if plugin is None or plugin.extended_api else plugin.creator_fn
