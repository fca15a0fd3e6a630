"""Checks of every plugin that an installed distribution offers, chosen or not: nothing is dropped in silence."""

from collections.abc import Iterator

from sglk.backends.finding import Finding, ok, warn
from sglk.config.compose import Composed
from sglk.config.schema import ServeConfig
from sglk.doctor.children import ask
from sglk.doctor.deployment import backends
from sglk.doctor.machine import Machine
from sglk.doctor.sentence import parted
from sglk.errors import RunError
from sglk.plugins.claims import backend_plugins, refusal
from sglk.plugins.plugin import Plugin


def check_plugins(machine: Machine, composed: Composed[ServeConfig]) -> Iterator[Finding]:
    """Import each plugin of a distribution in a process of its own; the chosen one has a check of its own."""
    plugins = backend_plugins()
    offered = [plugin for plugin in plugins if plugin.distribution is not None]
    if not offered:
        yield ok("plugins", f"no distribution in the site-packages of {machine.executable} offers a backend")
    for plugin in offered:
        if (reason := refusal(plugin, plugins)) is not None:
            why, todo = parted(f"backend {plugin.name!r} ({plugin.origin}) is refused: {reason}")
            yield warn("plugins", why, todo or "`sglk plugins` shows all of them")
        elif plugin.name not in backends(composed.config):
            yield _imported(plugin)
        else:
            yield ok("plugins", f"backend {plugin.name!r} ({plugin.origin}) is used, see below")


def _imported(plugin: Plugin) -> Finding:
    try:
        answer = ask("backend_class", plugin.name)
    except RunError as error:
        return warn(
            "plugins", f"backend {plugin.name!r} ({plugin.origin}) ends its process: {error}", "uninstall or repair it"
        )
    if "error" in answer:
        why, todo = parted(answer["error"])
        return warn("plugins", why, todo or "uninstall or repair it")
    return ok("plugins", f"backend {plugin.name!r} ({plugin.origin}) loads")
