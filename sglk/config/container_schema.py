"""How containers get at the devices of a chip."""

from dataclasses import dataclass, field
from typing import Optional


@dataclass
class ContainerConfig:
    """How a container gets the chip's devices."""

    resource: Optional[str] = None
    """Kubernetes resource that the vendor's device plugin offers, such as `nvidia.com/gpu`; null = none is needed."""
    driver: Optional[str] = None
    """Docker device driver that reserves devices by index, such as `nvidia`; null = `nodes` are passed in."""
    nodes: list[str] = field(default_factory=list)
    """Device nodes of a container; `{index}` stands for that of the device."""
