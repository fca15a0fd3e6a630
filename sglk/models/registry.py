"""Which class builds which architecture: a table of strings, imported on demand."""

from importlib import import_module
from typing import TYPE_CHECKING

from sglk.errors import ModelLoadError, nearest
from sglk.models.families import FAMILIES

if TYPE_CHECKING:
    from sglk.models.causal_lm import CausalLM

ARCHITECTURES = {
    "LlamaForCausalLM": "sglk.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "sglk.models.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "sglk.models.mixtral:MixtralForCausalLM",
    "Qwen2ForCausalLM": "sglk.models.qwen2:Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM": "sglk.models.qwen2_moe:Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM": "sglk.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "sglk.models.qwen3_moe:Qwen3MoeForCausalLM",
}
"""Architecture as in config.json to `module:class`."""


def check_architecture(architecture: str, whose: str = "") -> None:
    """Raise ModelLoadError, with the supported ones, where no class builds `architecture`. Needs no torch.

    `whose` begins the message, such as `model 'x': `.
    """
    if architecture not in ARCHITECTURES:
        raise _unsupported(architecture, whose)


def check_known(architecture: str, whose: str = "") -> None:
    """Raise the same where `architecture` cannot be planned for engines that are not sglk's own, either."""
    if architecture not in FAMILIES:
        raise _unsupported(architecture, whose)


def _unsupported(architecture: str, whose: str) -> ModelLoadError:
    elsewhere = ", ".join(sorted(FAMILIES.keys() - ARCHITECTURES.keys()))
    # Only another spelling is a near match: Qwen3 must not be advised to load as Qwen2.
    same = [name for name in FAMILIES if name.lower() == architecture.lower() and name != architecture]
    return ModelLoadError(
        f"{whose}architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}, and with "
        f"engine=sglang or engine=vllm {elsewhere}{nearest(architecture, same)}"
    )


def model_class(architecture: str) -> "type[CausalLM]":
    """Return the class for `architecture`; raises ModelLoadError that lists the supported ones."""
    check_architecture(architecture)
    module, _, name = ARCHITECTURES[architecture].partition(":")
    loaded: type[CausalLM] = getattr(import_module(module), name)
    return loaded
