"""sglk: deploy and tune LLM inference on any chip, by configuration."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglk.engine.messages import SamplingParams
    from sglk.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]

__version__ = "0.1.0"

_PUBLIC = {"LLM": "sglk.llm", "SamplingParams": "sglk.engine.messages"}
"""Imported when first asked for: an engine needs torch, most of sglk does not."""


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sglk' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
