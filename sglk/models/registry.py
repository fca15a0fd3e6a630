"""Which class builds which architecture: a table of strings, imported on demand."""

from importlib import import_module

from sglk.errors import ModelLoadError, nearest
from sglk.models.causal_lm import CausalLM

ARCHITECTURES = {
    "LlamaForCausalLM": "sglk.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "sglk.models.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "sglk.models.qwen2:Qwen2ForCausalLM",
}
"""Architecture as in config.json to `module:class`."""


def model_class(architecture: str) -> type[CausalLM]:
    """Return the class for `architecture`; raises ModelLoadError that lists the supported ones."""
    target = ARCHITECTURES.get(architecture)
    if target is None:
        raise ModelLoadError(
            f"architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
            f"{nearest(architecture, ARCHITECTURES)}"
        )
    module, _, name = target.partition(":")
    loaded: type[CausalLM] = getattr(import_module(module), name)
    return loaded
