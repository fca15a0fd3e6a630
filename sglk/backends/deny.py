"""The deny list of a deployment: implementations that its configuration takes out of the choice."""

import logging
from collections.abc import Mapping
from typing import Any

# What defines ops, so that all of them are known by name.
from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops  # noqa: F401
from sglk.backends.ops import Denial, Implementation, OpRegistry, known_ops, op_named
from sglk.config.schema import DenyConfig
from sglk.errors import ConfigError, nearest

logger = logging.getLogger(__name__)


def denials(configured: Mapping[str, DenyConfig]) -> tuple[Denial, ...]:
    """Return what `backend.deny` says, for OpRegistry; raises ConfigError for an op that does not exist."""
    for op in configured:
        if op not in known_ops():
            raise ConfigError(f"backend.deny names no op {op!r}{nearest(op, known_ops())}")
    return tuple(Denial(op, entry.provider, entry.reason) for op, entry in configured.items())


def warn_of_idle(ops: OpRegistry) -> None:
    """Warn of denials that take nothing out of the choice: the provider is spelt wrong, or has no such op here."""
    for denial in ops.deny:
        offers: tuple[Implementation[Any, Any], ...] = ops.implementations(op_named(denial.op))
        if not any(denial.covers(offer) for offer in offers):
            offered = ", ".join(sorted({offer.provider for offer in offers})) or "nobody"
            by = "" if denial.provider is None else f" of provider {denial.provider!r}"
            logger.warning(
                "backend.deny.%s takes nothing out: no implementation%s; offered by %s", denial.op, by, offered
            )
