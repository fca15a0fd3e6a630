"""Which quantisation a model is loaded with: what its checkpoint has, and what the user asks for. Needs no torch."""

from sglk.backends.schemes import ON_LOAD, LinearScheme
from sglk.config.quantization import NAMES
from sglk.errors import ConfigError
from sglk.models.quantization_config import CheckpointQuantization


def choose_scheme(requested: str | None, found: CheckpointQuantization | None, where: str) -> LinearScheme | None:
    """Return the scheme that `runtime.quantization=requested` means for a checkpoint; None = full precision.

    Raises ConfigError where the checkpoint, which `where` names, is of another kind than the user says.
    """
    if requested is None:
        return found.scheme if found else None
    name = NAMES[requested]
    if found is None:
        if name.method is not None:
            raise ConfigError(
                f"runtime.quantization={requested} asks for a checkpoint that is quantised already, and {where} is in "
                f"full precision; choose null, or one of {', '.join(ON_LOAD)} to round it when it is loaded"
            )
        assert name.scheme is not None
        return ON_LOAD[name.scheme]
    # The name of a layout leaves the scheme to the checkpoint: GPTQ has several.
    same = name.method == found.method if name.method else name.scheme == found.scheme.kind
    if not same:
        raise ConfigError(
            f"runtime.quantization={requested} contradicts {where}, which is quantised as {found.scheme.kind} "
            f"({found.method}); set it to null or {found.scheme.kind}"
        )
    return found.scheme
