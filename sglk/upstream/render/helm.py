"""Values for the chart in `deploy/helm/sglk`, which makes the same objects as `target=kubernetes`."""

from typing import Any

from sglk.upstream.render.kubernetes import (
    PROBE_PERIOD_S,
    config_keys,
    gateway_words,
    has_gateway,
    resources,
    start_failures,
)
from sglk.upstream.render.machine import ANYWHERE, model_folder, serve_words
from sglk.upstream.render.text import HEADER, as_yaml, commented
from sglk.upstream.render.unit import Rendered, Unit


def helm_values(rendered: Rendered) -> dict[str, str]:
    """Return one file, for `helm install NAME deploy/helm/sglk --values FILE`."""
    return {"values.yaml": commented([HEADER]) + as_yaml(_values(rendered))}


def _values(rendered: Rendered) -> dict[str, Any]:
    settings = rendered.config.render
    values: dict[str, Any] = {
        "name": rendered.name,
        "image": settings.image,
        "port": rendered.config.server.port,
        "tls": rendered.config.server.ssl_certfile is not None,
        "drainSeconds": rendered.drain_s,
        "probePeriodSeconds": PROBE_PERIOD_S,
        "startFailures": start_failures(rendered),
        "sharedMemory": settings.shared_memory,
        "replicas": settings.replicas,
        "keys": list(rendered.keys),
        "files": [{"key": key, "path": path, "text": rendered.files[path]} for key, path in config_keys(rendered)],
        "groups": [_group(rendered, unit) for unit in rendered.units if unit.url is None],
        "gateway": None,
    }
    if has_gateway(rendered):
        values["gateway"] = {
            "args": serve_words(rendered, gateway_words(rendered), ANYWHERE),
            "weights": {unit.group.name: unit.group.weight for unit in rendered.units},
        }
    return values


def _group(rendered: Rendered, unit: Unit) -> dict[str, Any]:
    folder = model_folder(unit.config)
    return {
        "name": unit.name,
        "args": serve_words(rendered, unit.words, ANYWHERE),
        "resources": resources(unit),
        "model": None if folder is None else {"folder": folder, "claim": rendered.config.render.claim},
    }
