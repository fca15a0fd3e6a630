"""The sampling ops of the cpu backend against their reference, and the reference against its definition."""

import pytest
import torch

from sglk.backends import cpu_sampling_ops, sampling_ops
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.cpu_kernels.registration import PROVIDER

TIES = 2.0
"""Spread of logits that are then made whole numbers, a third of them forbidden."""


@pytest.mark.parametrize("vocabulary", [7, 320, 5000, 20_000])
@pytest.mark.parametrize("spread", [0.1, 4.0, TIES])
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
    min_p = torch.rand(rows, generator=rng)
    min_p[::2] = 0.0
    uniform = torch.rand(rows, generator=rng)
    if spread == TIES:
        logits = logits.round()
        logits[:, ::3] = -torch.inf
    args = (temperature, top_k, top_p.clamp(max=1.0), min_p, uniform)
    expected = sampling_ops.sample.reference(logits, *args)
    # Which of equals are the likeliest torch does not say.
    if spread != TIES:
        assert torch.equal(cpu_sampling_ops.sample(logits, *args), expected)
    own = CpuBackend(num_threads=2).ops.select(sampling_ops.sample, vocab_size=vocabulary, dtype="fp32")
    assert own.choice.provider == PROVIDER or isinstance(kernels(), str)
    together = own(logits, *args)
    assert torch.equal(together, expected)
    for row in range(0, rows, 7):
        one = slice(row, row + 1)
        assert torch.equal(own(logits[one], *(each[one] for each in args)), together[one])


@pytest.mark.parametrize("spoilt", [0, 3, 17])
def test_a_logit_that_is_not_a_number_is_as_one_that_is_forbidden(spoilt: int) -> None:
    """Else numbers beside it seem likelier than the likeliest one, which the table of likelihoods has no place for."""
    if isinstance(kernels(), str):
        pytest.skip("there is no C compiler")
    rows, vocabulary = 40, 50
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 30
    logits[:, spoilt] = -torch.inf
    rest = (torch.ones(rows), torch.full((rows,), 5), torch.full((rows,), 0.9), torch.zeros(rows), torch.rand(rows))
    own = CpuBackend(num_threads=1).ops.select(sampling_ops.sample, vocab_size=vocabulary, dtype="fp32")
    expected = own(logits, *rest)
    logits[:, spoilt] = torch.nan
    assert torch.equal(own(logits, *rest), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [32, 300, 320, 5001])
def test_masks(vocabulary: int, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, vocabulary, generator=rng).to(dtype)
    words = torch.randint(-(2**31), 2**31, (2, -(-vocabulary // 32)), generator=rng).to(torch.int32)
    rows = torch.tensor([2, 0])
    masked, expected = logits.clone(), logits.clone()
    cpu_sampling_ops.mask_logits(masked, rows, words)
    sampling_ops.mask_logits.reference(expected, rows, words)
    assert torch.equal(masked, expected)
    assert torch.equal(masked[[1, 3]], logits[[1, 3]])
    for row, mask in zip(rows.tolist(), words.tolist(), strict=True):
        allowed = [bool(mask[token // 32] >> (token % 32) & 1) for token in range(vocabulary)]
        assert masked[row].isfinite().tolist() == allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_single_logits_are_shrunk_and_shifted(dtype: torch.dtype) -> None:
    logits = torch.tensor([[2.0, -2.0, 0.5, 7.0], [1.0, 2.0, 3.0, -torch.inf]], dtype=dtype)
    rows, ids = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 1, 3])
    factors, offsets = torch.tensor([2.0, 2.0, 1e-6, 1.0, 2.0]), torch.tensor([0.5, 0.0, 0.0, -torch.inf, 1.0])
    sampling_ops.adjust_logits.reference(logits, rows, ids, factors, offsets)
    # A factor near 0 makes no infinity in fp16 either.
    large = torch.tensor(0.5e6).clamp(max=torch.finfo(dtype).max)
    expected = torch.tensor([[1.5, -4.0, large, 7.0], [1.0, -torch.inf, 3.0, -torch.inf]]).to(dtype)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logprobs_are_those_of_the_whole_distribution(dtype: torch.dtype) -> None:
    logits = (torch.randn(5, 300, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    ids = torch.tensor([0, 299, 7, 7, 150])
    chosen, top, top_ids = sampling_ops.token_logprobs.reference(logits, ids, 6)
    expected = logits.double().log_softmax(-1)
    torch.testing.assert_close(chosen.double(), expected[range(5), ids], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(top.double(), expected.topk(6).values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(expected.gather(1, top_ids), top.double(), atol=1e-5, rtol=1e-5)
    assert sampling_ops.token_logprobs.reference(logits, ids, 0)[1].shape == (5, 0)


@pytest.mark.parametrize("vocabulary", [7, 320, 40_000])
def test_of_equal_logprobs_the_lower_ids_are_told_however_many_are_wanted(vocabulary: int) -> None:
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0)).round()
    ids = torch.zeros(3, dtype=torch.int64)
    expected = logits.sort(dim=-1, descending=True, stable=True).indices
    for count in (1, 2, 5, 7):
        _, top, top_ids = sampling_ops.token_logprobs.reference(logits, ids, count)
        assert torch.equal(top_ids, expected[:, :count])
        assert torch.equal(top, logits.gather(1, top_ids) - logits.logsumexp(-1, keepdim=True))


@pytest.mark.parametrize("top_p", [1e-30, 1e-44, 0.0])
def test_the_likeliest_id_stays_however_small_top_p_is(top_p: float) -> None:
    """What a request gives is above 0, which fp32 need not have."""
    logits = torch.zeros(3, 9)
    logits[0, 4] = 2.0
    rest = (torch.ones(3), torch.tensor([0, 3, 1]), torch.full((3,), top_p), torch.zeros(3), torch.full((3,), 0.9))
    own = CpuBackend(num_threads=1).ops.select(sampling_ops.sample, vocab_size=9, dtype="fp32")
    for sample in (sampling_ops.sample.reference, cpu_sampling_ops.sample, own):
        ids = sample(logits, *rest)
        assert ids[0] == 4
        assert ((ids >= 0) & (ids < 9)).all()


def test_logprobs_of_a_row_that_is_alone_are_those_it_has_among_others() -> None:
    """The vocabulary is large enough for torch to share the sum of one row out among threads."""
    rows, vocabulary, backend = 24, 50_000, CpuBackend(num_threads=2)
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 6
    ids = logits.argmax(-1)
    logprobs = backend.ops.select(sampling_ops.token_logprobs, vocab_size=vocabulary, dtype="fp32")
    together = backend.execute_runnable(lambda: logprobs(logits, ids, 0))[0]
    alone = [
        backend.execute_runnable(lambda row=row: logprobs(logits[row : row + 1], ids[row : row + 1], 0))[0]
        for row in range(rows)
    ]
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("vocabulary", [1, 7, 8, 50, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_highest_logit(vocabulary: int, dtype: torch.dtype) -> None:
    if isinstance(kernels(), str):
        pytest.skip("there is no C compiler")
    run = CpuBackend().ops.select(sampling_ops.greedy, vocab_size=vocabulary, dtype="fp32")
    assert run.choice.provider == PROVIDER
    # Few different numbers, so that many are equal.
    logits_BV = torch.randint(-3, 3, (12, vocabulary + 3), generator=torch.manual_seed(vocabulary)).to(dtype)
    logits_BV[1] = -torch.inf
    logits_BV[2, vocabulary // 2] = torch.inf
    logits_BV[3, vocabulary // 2] = torch.nan
    logits_BV[4] = torch.nan
    logits_BV = logits_BV[:, :vocabulary]
    for got, wanted in zip(run(logits_BV), sampling_ops.greedy.reference(logits_BV), strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got.nan_to_num(9), wanted.nan_to_num(9)) if got.is_floating_point() else got.equal(wanted)
