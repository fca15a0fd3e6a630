"""Rules of rendering."""

import re
from collections.abc import Iterator

from sglk.config.ranges import at_least, one_of
from sglk.config.render_schema import RenderConfig

SECOND_PORT = 18000
"""From the port that an nginx listens on to the one that it keeps for itself."""

TARGETS = ("shell", "systemd", "compose", "kubernetes", "helm-values", "nginx")


def render_problems(config: RenderConfig) -> Iterator[str]:
    """Yield what is wrong with the target and its settings."""
    yield from one_of("target", config.target, TARGETS)
    settings = config.render
    if not 1 <= settings.listen <= 65535 - SECOND_PORT:
        yield f"render.listen={settings.listen} is not a port from 1 to {65535 - SECOND_PORT}"
    yield from at_least("render.replicas", settings.replicas, 1)
    for name in ("image", "user", "executable"):
        value = getattr(settings, name)
        if not value or not value.isprintable() or any(sign.isspace() for sign in value):
            yield f"render.{name}={value!r} is not one word; write it without spaces"
    if not re.fullmatch(r"[1-9]\d*(Ki|Mi|Gi)", settings.shared_memory):
        yield f"render.shared_memory={settings.shared_memory!r} is not a size; write one such as 8Gi"
    for name in ("namespace", "claim"):
        value = getattr(settings, name)
        if value is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", value):
            yield f"render.{name}={value!r} is no name of Kubernetes; it is of a-z, 0-9, `-` and `.`"
    if settings.output is not None and not settings.output:
        yield "render.output is empty; write a folder, or null for standard output"
