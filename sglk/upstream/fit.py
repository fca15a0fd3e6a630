"""What files say for another engine: runtime parameters that this one has no equivalent of are left out, and named."""

from collections.abc import Collection
from dataclasses import replace

from sglk.config.compose import RootT
from sglk.config.profiles import NATIVE
from sglk.config.schema import RuntimeConfig, ServeConfig
from sglk.config.sources import as_yaml
from sglk.upstream.arguments import Arguments
from sglk.upstream.dialects import DIALECTS
from sglk.upstream.names import NoEquivalent
from sglk.upstream.table import flag_table


def fitted(config: RootT, inherited: Collection[str]) -> tuple[RootT, list[str]]:
    """Return a deployment without the `inherited` runtime parameters that its engine has no words for, and why.

    A chip's file and a tuned profile suit the engine that they were made for. What the user has stated stays, for
    `compose_command` to refuse. Raises ConfigError for a version whose flags are not known.
    """
    notes: list[str] = []
    left = set(inherited)
    while (missing := _missing(config)) is not None and missing.name in left:
        left.remove(missing.name)
        neutral = getattr(RuntimeConfig(), missing.name)
        notes.append(f"{missing}; it was not stated by you, so runtime.{missing.name}={as_yaml(neutral)} is used")
        config = replace(config, runtime=replace(config.runtime, **{missing.name: neutral}))
    return config, notes


def _missing(config: ServeConfig) -> NoEquivalent | None:
    """Return the first runtime parameter that the engine has no words for."""
    if config.engine.name == NATIVE:
        return None
    table = flag_table(config.engine.name, str(config.engine.version))
    try:
        DIALECTS[config.engine.name].add_arguments(Arguments(table), config, "")
    except NoEquivalent as missing:
        return missing
    return None
