"""Deployments as they are typed, composed once for all tests."""

from functools import cache

from sglk.commands.doctor import deployment
from sglk.doctor.deployment import Deployment


@cache
def typed(*words: str) -> Deployment:
    """Return what `words` after `sglk doctor` mean; what lies in the current directory must not matter."""
    return deployment(words)
