"""From a model's configuration to a model on the device, ready to run."""

import logging
from dataclasses import dataclass, replace

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import compute_dtype, dtype_name
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.models.causal_lm import CausalLM
from sglk.models.chosen_scheme import choose_scheme
from sglk.models.context_length import served_context_length
from sglk.models.description import ModelDescription, describe_model
from sglk.models.dummy_weights import DummyWeights
from sglk.models.fit import check_fit
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_weights import GgufWeights
from sglk.models.quantization import check_scheme, open_quantised, quantization_of
from sglk.models.registry import model_class
from sglk.models.safetensors_weights import SafetensorsWeights
from sglk.models.shapes_only import ShapesOnly
from sglk.models.spec import ModelSpec
from sglk.models.split import RankPart
from sglk.models.tokenizer import Tokenizer
from sglk.models.weights import WeightSource
from sglk.parallel.ranks import ALONE, Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights on the device, and what goes with it."""

    model: CausalLM
    spec: ModelSpec
    tokenizer: Tokenizer


class OpenModel:
    """A model on its device whose weights are still to be read."""

    def __init__(
        self,
        model: ModelConfig,
        runtime: RuntimeConfig,
        backend: DeviceBackend,
        where: str | None = None,
        ranks: Ranks = ALONE,
        *,
        taken: int = 0,
    ) -> None:
        """Read what the files of `model` say and build its class in `runtime.dtype` on `backend`'s device.

        `where` names the device in messages, `taken` are bytes of its memory that others will hold before the weights
        come; of a model that `ranks` hold together this is the part of one. Raises as `load_model` does, but for what
        is wrong with the tensors themselves.
        """
        where = where or f"backend {backend.name!r}"
        self._runtime = runtime
        dtype = compute_dtype(runtime.dtype, backend.capabilities, where)
        # A device that computes nothing needs no values, only what the files or the configuration say of the shapes.
        description = describe_model(model, "dummy" if backend.simulated else runtime.load_format)
        served_context_length(description.spec.max_position_embeddings, runtime)
        scheme = choose_scheme(runtime.quantization, description.quantization, f"model {model.name!r}")
        if scheme is not None:
            check_scheme(scheme.kind, backend, where)
        self._computed_in = scheme.kind if scheme else dtype_name(dtype)
        self._source = open_weights(description)
        quantization = quantization_of(self._source, scheme, description.spec, backend.capabilities)
        self.spec = replace(description.spec, quantization=quantization)
        self.tokenizer = description.tokenizer
        self._part = RankPart(self.spec, ranks, model.name)
        self.model = model_class(self.spec.architecture)(self._part.spec, backend, dtype, ranks)
        check_fit(self.model, self._source, model.name, where, runtime, taken)

    @property
    def least_bytes(self) -> int:
        """The least device memory that the weights may take once they are loaded."""
        return self.model.least_bytes(self._source)

    def load(self) -> LoadedModel:
        """Read the weights; raises ModelLoadError where a tensor is missing, damaged or of another shape."""
        model, source = self.model, self._source
        if model.context.backend.simulated:
            source = ShapesOnly(model.context.weights)
            model.load_weights(source)
        else:
            shapes = model.weight_shapes()
            source = source or DummyWeights(self._part.whole_shapes(shapes), self._runtime.random_seed)
            model.load_weights(source, self._part)
        logger.info(
            "%s: linear layers compute in %s, %d bytes of weights", source, self._computed_in, model.weights_bytes
        )
        return LoadedModel(model, self.spec, self.tokenizer)


def load_model(
    model: ModelConfig,
    runtime: RuntimeConfig,
    backend: DeviceBackend,
    where: str | None = None,
    ranks: Ranks = ALONE,
) -> LoadedModel:
    """Read the files of `model`, build its class and load its weights in `runtime.dtype` onto `backend`'s device.

    `where` names the device in messages; of a model that `ranks` hold together, the part of this one is loaded. Raises
    ModelLoadError where a file or tensor is missing, damaged, of another shape or not supported, ConfigError where the
    device has no such dtype or quantisation, the checkpoint another one, or the model cannot be split over the ranks,
    CapacityError where the device's memory is too small.
    """
    return OpenModel(model, runtime, backend, where, ranks).load()


def open_weights(description: ModelDescription) -> WeightSource | None:
    """Return the weights that `description` points to, None where random ones are wanted."""
    weights = description.weights
    if weights is None:
        return None
    if isinstance(weights, GgufFile):
        return GgufWeights(weights, description.spec)
    stored = SafetensorsWeights(weights)
    return open_quantised(stored, description.quantization) if description.quantization else stored
