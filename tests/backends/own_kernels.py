"""What tests of the cpu backend's own kernels share."""

from typing import Any

import pytest
import torch

from sglk.backends.constraints import Trait
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.cpu_kernels.registration import PROVIDER
from sglk.backends.ops import BoundOp, Op

built = pytest.mark.skipif(isinstance(kernels(), str), reason="the kernels cannot be built here")


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen(op: Op[..., Any], threads: int = 2, **traits: Trait) -> BoundOp[..., Any]:
    bound = CpuBackend(num_threads=threads).ops.select(op, **{"dtype": "fp32", **traits})
    assert bound.choice.provider == PROVIDER, bound.choice.reason
    return bound
