"""Arguments of the ops that choose tokens. Letters as in `sampling_ops.py`."""

from typing import Any

import torch

from sglk.backends.dtypes import TORCH_DTYPES
from sglk.operators.arguments.dense import Shape

TOP_K = (0, 40, 1, 0, 20)
TOP_P = (1.0, 0.9, 1.0, 0.5, 0.95)
MIN_P = (0.0, 0.0, 0.0, 0.05, 0.02)
TEMPERATURE = (1.0, 0.7, 1.0, 1.5, 0.3)
"""What the rows of a batch ask for, in turn."""


def greedy_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_BV; in the last row the highest logit comes twice."""
    logits_BV = random_logits(shape, generator)
    places = torch.randperm(shape["vocab_size"], generator=generator)[:2]
    logits_BV[-1, places] = 30.0
    return (logits_BV,)


def sample_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_BV, temperature_B, top_k_B, top_p_B, min_p_B and uniform_B."""
    rows = torch.arange(shape["tokens"])
    temperature, top_k, top_p, min_p = (torch.tensor(each) for each in (TEMPERATURE, TOP_K, TOP_P, MIN_P))
    settings = (each[rows % len(each)] for each in (temperature, top_k.clamp(max=shape["vocab_size"]), top_p, min_p))
    return random_logits(shape, generator), *settings, torch.rand(shape["tokens"], generator=generator)


def adjust_logits_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_BV, and rows_N, ids_N, factors_N and offsets_N of two edits a row."""
    logits_BV = random_logits(shape, generator)
    rows_N = torch.arange(shape["tokens"]).repeat_interleave(2)
    ids_N = torch.cat([torch.randperm(shape["vocab_size"], generator=generator)[:2] for _ in range(shape["tokens"])])
    factors_N = 0.5 + torch.rand(len(rows_N), generator=generator)
    return logits_BV, rows_N, ids_N, factors_N, torch.randn(len(rows_N), generator=generator)


def mask_logits_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_BV, rows_M (every second row) and words_MW."""
    rows_M = torch.arange(0, shape["tokens"], 2)
    words = -(-shape["vocab_size"] // 32)
    words_MW = torch.randint(-(2**31), 2**31, (len(rows_M), words), generator=generator).to(torch.int32)
    return random_logits(shape, generator), rows_M, words_MW


def token_logprobs_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_BV, ids_B and the count of likeliest ids."""
    ids_B = torch.randint(shape["vocab_size"], (shape["tokens"],), generator=generator)
    return random_logits(shape, generator), ids_B, min(shape["count"], shape["vocab_size"])


def random_logits(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return logits_BV as spread as a language model's."""
    logits_BV = torch.randn((shape["tokens"], shape["vocab_size"]), generator=generator).mul_(3)
    return logits_BV.to(TORCH_DTYPES[shape["dtype"]])
