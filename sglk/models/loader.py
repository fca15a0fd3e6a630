"""From a model's configuration to a model on the device, ready to run."""

from dataclasses import dataclass

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import compute_dtype
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.models.causal_lm import CausalLM
from sglk.models.description import ModelDescription, describe_model
from sglk.models.dummy_weights import DummyWeights
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_weights import GgufWeights
from sglk.models.registry import model_class
from sglk.models.safetensors_weights import SafetensorsWeights
from sglk.models.spec import ModelSpec
from sglk.models.tokenizer import Tokenizer
from sglk.models.weights import WeightSource


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights on the device, and what goes with it."""

    model: CausalLM
    spec: ModelSpec
    tokenizer: Tokenizer


def load_model(model: ModelConfig, runtime: RuntimeConfig, backend: DeviceBackend) -> LoadedModel:
    """Read the files of `model`, build its class and load its weights in `runtime.dtype` onto `backend`'s device.

    Raises ModelLoadError where a file or tensor is missing, damaged, of another shape or not supported, ConfigError
    where the device has no such dtype, CapacityError where its memory is too small.
    """
    description = describe_model(model, runtime.load_format)
    spec = description.spec
    network = model_class(spec.architecture)(spec, backend, compute_dtype(runtime.dtype, backend.capabilities))
    network.load_weights(open_weights(description, network, runtime.random_seed))
    return LoadedModel(network, spec, description.tokenizer)


def open_weights(description: ModelDescription, network: CausalLM, seed: int) -> WeightSource:
    """Return the weights that `description` points to; `seed` fixes random ones."""
    weights = description.weights
    if weights is None:
        return DummyWeights(network.weight_shapes(), seed)
    if isinstance(weights, GgufFile):
        return GgufWeights(weights, description.spec)
    return SafetensorsWeights(weights)
