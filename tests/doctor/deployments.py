"""Deployments as they are typed, composed once for all tests."""

from functools import cache

from sglk.doctor.deployment import Deployment, deployment


@cache
def typed(*words: str) -> Deployment:
    """Return what `words` after `sglk doctor` mean; what lies in the current directory must not matter."""
    return deployment(words)
