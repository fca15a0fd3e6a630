"""Environment variables that must be set before a backend's libraries load, which may be when torch does."""

import logging
import os
import sys

from sglk.config.schema import BackendConfig

log = logging.getLogger("sglk.config")


def prepare_environment(backend: BackendConfig) -> None:
    """Set `backend.environment` in this process, and so in its children; what the user has set stays."""
    unset = {name: value for name, value in backend.environment.items() if name not in os.environ}
    if unset and "torch" in sys.modules:
        log.warning(
            "torch is loaded already; libraries of backend %s that came with it do not see %s: set them in the shell",
            backend.name,
            ", ".join(unset),
        )
    os.environ.update(unset)
