"""What a deployment can be rendered to."""

from collections.abc import Callable

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


def render(target: str, rendered: Rendered) -> dict[str, str]:
    """Return the files of one target; raises ConfigError for what it cannot hold."""
    return TARGETS[target](rendered)
