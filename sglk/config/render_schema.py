"""Settings of the files that a deployment is rendered to."""

from dataclasses import dataclass, field
from typing import Optional

from omegaconf import MISSING

from sglk.config.schema import ServeConfig


@dataclass
class RenderSettings:
    """Names and places of rendered files, and of what they describe."""

    name: Optional[str] = None
    """Of the service, as in DNS: letters, digits and `-`; null = made from the model's name."""
    output: Optional[str] = None
    """Folder for the files; null = all of them on standard output."""
    image: str = "sglk:latest"
    """Container image with sglk, the chip's software and, for an upstream engine, that engine."""
    namespace: Optional[str] = None
    """Kubernetes namespace; null = the one that `kubectl apply` is in."""
    replicas: int = 1
    """Pods of each device group."""
    claim: Optional[str] = None
    """PersistentVolumeClaim with the model's files, mounted at their folder; null = that folder of the node."""
    shared_memory: str = "8Gi"
    """Size of /dev/shm, in which ranks of one model exchange tensors."""
    user: str = "sglk"
    """User that systemd runs the service as."""
    executable: str = "sglk"
    """The program, with its path where a unit needs one."""
    listen: int = 80
    """Port of an nginx; it takes the one 18000 above for itself, on the loopback interface."""
    routes: dict[str, list[str]] = field(default_factory=dict)
    """For nginx, further models: name -> `host:port=weight` of each of its servers."""


@dataclass
class RenderConfig(ServeConfig):
    """Root of `render.yaml`: a deployment, and what to make of it."""

    target: str = MISSING
    """`shell`, `systemd`, `compose`, `kubernetes`, `helm-values` or `nginx`."""
    render: RenderSettings = field(default_factory=RenderSettings)
