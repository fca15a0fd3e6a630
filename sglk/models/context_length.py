"""How long a request may be. Needs no torch."""

from sglk.config.schema import RuntimeConfig
from sglk.errors import ConfigError


def served_context_length(own: int, runtime: RuntimeConfig) -> int:
    """Return the tokens of `runtime.context_length`, or else of the model's `own`; ConfigError where they are more."""
    if runtime.context_length is None:
        return own
    if runtime.context_length > own:
        raise ConfigError(
            f"runtime.context_length={runtime.context_length} is beyond the {own} tokens that the model takes; choose "
            f"at most {own}"
        )
    return runtime.context_length
