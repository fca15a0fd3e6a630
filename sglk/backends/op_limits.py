"""What a chip's file declares about the shapes that its ops take."""

from collections.abc import Mapping, Sequence

from sglk.backends.constraints import Constraint, parse_constraint
from sglk.backends.work import FORMULAS
from sglk.config.schema import ChipConfig
from sglk.errors import ConfigError, nearest


def declared_limits(chip: ChipConfig | None) -> Mapping[str, Sequence[Constraint]]:
    """Return the demands of `chip.op_limits` by op; none where no chip is told.

    Raises ConfigError for an op that does not exist, and for a demand in other words than `parse_constraint` reads.
    """
    return {} if chip is None else {op: _demands(chip.name, op, texts) for op, texts in chip.op_limits.items()}


def _demands(chip: str, op: str, texts: Sequence[str]) -> tuple[Constraint, ...]:
    if op not in FORMULAS:
        raise ConfigError(f"op_limits of chip {chip!r} names no op {op!r}{nearest(op, FORMULAS)}")
    try:
        return tuple(parse_constraint(text) for text in texts)
    except ConfigError as error:
        raise ConfigError(f"op_limits.{op} of chip {chip!r}: {error}") from error
