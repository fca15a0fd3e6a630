"""From a deployment to a model on its device, ready for an engine."""

from sglk.config.schema import ServeConfig
from sglk.engine.batch import Runner
from sglk.engine.runner import ModelRunner
from sglk.models.loader import load_model
from sglk.models.tokenizer import Tokenizer
from sglk.plugins import load_backend


def load_runner(config: ServeConfig) -> tuple[Runner, Tokenizer]:
    """Load the backend and the model of `config` for its first device; raises any SglkError."""
    name = config.chip.backend if config.backend.name == "auto" else config.backend.name
    factory = load_backend(name)
    backend = factory(
        num_threads=config.runtime.num_threads, fallback=config.backend.fallback, **config.backend.options
    )
    loaded = load_model(config.model, config.runtime, backend)
    return ModelRunner(loaded.model, backend, config.runtime), loaded.tokenizer
