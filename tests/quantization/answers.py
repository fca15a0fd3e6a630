"""Logits of a loaded model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sglk.attention.base import AttentionStep
from sglk.attention.paged import PagedAttention
from sglk.backends.cpu import CpuBackend
from sglk.backends.dtypes import torch_dtype
from sglk.cache.kv import KVLayout, KVPool
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.models.causal_lm import CausalLM
from sglk.models.loader import load_model

IDS = list(b"What is the capital of France? It is Paris.")


def load(path: Path, **runtime: Any) -> CausalLM:
    """Load a folder or file with the cpu backend."""
    config = ModelConfig(name="tiny", path=str(path))
    return load_model(config, RuntimeConfig(**runtime), CpuBackend(num_threads=1)).model


def logits(model: CausalLM, ids: Sequence[int] = IDS, kv_cache_dtype: str = "fp32") -> torch.Tensor:
    """Return logits_TV of every position of `ids`, computed in one step."""
    spec, backend, count = model.spec, model.context.backend, len(ids)
    layout = KVLayout(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, torch_dtype(kv_cache_dtype))
    pool = KVPool(backend, layout, -(-count // 16), 16)
    attention = PagedAttention(backend, pool, spec.num_attention_heads, model.dtype)

    def run() -> torch.Tensor:
        lens = np.array([count])
        attention.plan(AttentionStep(lens, lens, [range(pool.num_pages)], num_prefills=1))
        return model.head(model.trunk(torch.tensor(ids), torch.arange(count), attention))

    return backend.execute_runnable(run).float()


def divergence(ours_TV: torch.Tensor, theirs_TV: torch.Tensor) -> float:
    """Return the mean KL divergence of our distributions from theirs, in nats a token."""
    theirs, ours = theirs_TV.log_softmax(-1), ours_TV.log_softmax(-1)
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())


def agreement(ours_TV: torch.Tensor, theirs_TV: torch.Tensor) -> float:
    """Return the share of positions at which the likeliest token is the same."""
    return float((ours_TV.argmax(-1) == theirs_TV.argmax(-1)).float().mean())
