"""From a deployment to a model on its device, ready for an engine."""

from sglk.config.schema import ServeConfig
from sglk.engine.batch import Runner
from sglk.engine.runner import ModelRunner
from sglk.engine.support import check_support
from sglk.models.loader import load_model
from sglk.models.tokenizer import Tokenizer
from sglk.plugins import load_backend


def load_runner(config: ServeConfig) -> tuple[Runner, Tokenizer]:
    """Load the backend and the model of `config` for its first device; raises any SglkError.

    What device or engine cannot do is refused before the model's files are read.
    """
    name = config.chip.backend if config.backend.name == "auto" else config.backend.name
    factory = load_backend(name)
    backend = factory(
        num_threads=config.runtime.num_threads, fallback=config.backend.fallback, **config.backend.options
    )
    where = f"backend {name!r} of chip {config.chip.name!r}, device group {config.groups[0].name!r}"
    check_support(config.runtime, backend, where)
    loaded = load_model(config.model, config.runtime, backend, where)
    return ModelRunner(loaded.model, backend, config.runtime), loaded.tokenizer
