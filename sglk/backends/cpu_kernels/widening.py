"""16-bit tensors for kernels that compute in fp32: widened on the way in, rounded once on the way out."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from sglk.backends.cpu_kernels.calls import Calls
from sglk.errors import BackendError


def in_fp32(calls: Calls, run: Callable[..., Any], *positions: int) -> Callable[..., Any]:
    """Return `run` for 16-bit tensors too: the arguments at these positions; a result gets the dtype of the first.

    Neither step looks at more than one number, so what holds for the bits of the fp32 kernel holds for the result's.
    """

    @wraps(run)
    def widened(*args: Any, **kwargs: Any) -> Any:
        dtype = args[0].dtype
        if dtype is torch.float32:
            return run(*args, **kwargs)
        if calls.recording:
            raise BackendError("tensors of 16 bits are widened between kernels; dtype=fp32 is faster")
        wide = list(args)
        for position in positions:
            if wide[position] is not None:
                wide[position] = wide[position].float()
        result = run(*wide, **kwargs)
        if isinstance(result, tuple):
            return tuple(each.to(dtype) for each in result)
        return None if result is None else result.to(dtype)

    return widened
