"""The sampling ops of the cpu backend against their reference."""

import pytest
import torch

from sglk.backends import cpu_sampling_ops, sampling_ops


@pytest.mark.parametrize("vocabulary", [320, 5000])
@pytest.mark.parametrize("spread", [0.1, 4.0])
def test_sampling(vocabulary: int, spread: float) -> None:
    rng = torch.Generator().manual_seed(0)
    rows = 60
    logits = torch.randn(rows, vocabulary, generator=rng) * spread
    temperature = torch.rand(rows, generator=rng) * 2 + 0.01
    top_k = torch.randint(0, 50, (rows,), generator=rng)
    top_k[::4] = 0
    top_k[1::8] = 3000
    top_p = torch.rand(rows, generator=rng) + 0.01
    top_p[::3] = 1.0
    uniform = torch.rand(rows, generator=rng)
    args = (temperature, top_k, top_p.clamp(max=1.0), uniform)
    assert torch.equal(cpu_sampling_ops.sample(logits, *args), sampling_ops.sample.reference(logits, *args))
