"""The deny list of a deployment: implementations that its configuration takes out of the choice."""

from collections.abc import Mapping

# What defines ops, so that all of them are known by name.
from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops  # noqa: F401
from sglk.backends.ops import Denial, known_ops
from sglk.config.schema import DenyConfig
from sglk.errors import ConfigError, nearest


def denials(configured: Mapping[str, DenyConfig]) -> tuple[Denial, ...]:
    """Return what `backend.deny` says, for OpRegistry; raises ConfigError for an op that does not exist."""
    for op in configured:
        if op not in known_ops():
            raise ConfigError(f"backend.deny names no op {op!r}{nearest(op, known_ops())}")
    return tuple(Denial(op, entry.provider, entry.reason) for op, entry in configured.items())
