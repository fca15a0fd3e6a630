"""What a deployment can be rendered to."""

from collections.abc import Callable

from sglk.errors import ConfigError
from sglk.upstream.render import helm, kubernetes, machine, nginx
from sglk.upstream.render.unit import Rendered

TARGETS: dict[str, Callable[[Rendered], dict[str, str]]] = {
    "shell": machine.shell,
    "systemd": machine.systemd,
    "compose": machine.compose,
    "kubernetes": kubernetes.kubernetes,
    "helm-values": helm.helm_values,
    "nginx": nginx.nginx,
}
"""Word on the command line -> files by name."""


PER_MACHINE = ("shell", "systemd")
"""Targets of one machine each, of which an engine may span several."""


def render(target: str, rendered: Rendered) -> dict[str, str]:
    """Return the files of one target; raises ConfigError for what it cannot hold."""
    engine = rendered.config.engine
    if engine.nnodes > 1 and target not in PER_MACHINE:
        raise ConfigError(
            f"target={target} holds no engine of engine.nnodes={engine.nnodes} machines, which start and end together;"
            " write target=shell or target=systemd for each engine.node_rank"
        )
    return TARGETS[target](rendered)
