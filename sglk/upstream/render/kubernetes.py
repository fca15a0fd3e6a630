"""Kubernetes objects: a workload and a service for each device group, and a gateway that splits the traffic."""

from collections.abc import Iterator
from typing import Any

from sglk.config.groups import SIMULATED
from sglk.config.quoting import list_text
from sglk.errors import ConfigError
from sglk.upstream.render.machine import ANYWHERE, HOME, model_folder, serve_words
from sglk.upstream.render.text import HEADER, as_yaml, commented
from sglk.upstream.render.unit import Rendered, Unit

WEIGHTS = "weights.yaml"
"""File of a gateway's weights: whoever edits the config map moves the traffic."""

GATEWAY = f"{HOME}-gateway"
"""Folder of what a gateway alone reads: config maps are read-only, and nothing can be mounted inside of one."""

KEYS = f"{GATEWAY}/keys"
"""Folder of a gateway's keys, a file each."""

PROBE_PERIOD_S = 10
PROBE_TIMEOUT_S = 25
"""A real token may take longer than an answer of `/health`."""


def kubernetes(rendered: Rendered) -> dict[str, str]:
    """Return one file of objects, for `kubectl apply`."""
    told = [HEADER, *_advice(rendered)]
    return {"kubernetes.yaml": commented(told) + as_yaml(*objects(rendered))}


def objects(rendered: Rendered) -> list[dict[str, Any]]:
    """Return all objects of a deployment."""
    found: list[dict[str, Any]] = []
    if rendered.files:
        data = {key: rendered.files[path] for key, path in config_keys(rendered)}
        found.append(_object(rendered, "ConfigMap", f"{rendered.name}-config", data=data))
    for unit in rendered.units:
        if unit.url is None:
            found += [_workload(rendered, unit), _service(rendered, unit.name)]
    if has_gateway(rendered):
        weights = {unit.group.name: unit.group.weight for unit in rendered.units}
        data = {WEIGHTS: as_yaml(weights)}
        found.append(_object(rendered, "ConfigMap", f"{rendered.name}-weights", data=data))
        found += [_gateway(rendered), _service(rendered, rendered.name)]
    return found


def has_gateway(rendered: Rendered) -> bool:
    """Return whether a router of its own stands before the groups."""
    return len(rendered.units) > 1 or rendered.units[0].url is not None


def gateway_words(rendered: Rendered) -> list[str]:
    """Return what the gateway serves: the same names and limits, with the groups as running servers."""
    groups = []
    for unit in rendered.units:
        told: dict[str, Any] = {"name": unit.group.name, "url": unit.url or address_of(rendered, unit)}
        told["weight"] = unit.group.weight
        if unit.group.standby:
            told["standby"] = True
        key_file = unit.group.api_key_file if unit.url is not None else group_key_file(rendered)
        if key_file is not None:
            told["api_key_file"] = key_file
        groups.append(told)
    config = rendered.config
    words = [f"model={config.model.name}"]
    words += [
        word
        for word in rendered.words
        if word.lstrip("+").startswith(("server.", "server=", "router.", "router=", "model."))
    ]
    return [*words, f"groups={list_text(groups)}", f"router.weights_file={GATEWAY}/weights/{WEIGHTS}"]


def group_key_file(rendered: Rendered) -> str | None:
    """Return where the gateway finds the key that the groups behind it ask for; None = they ask for none."""
    return f"{KEYS}/SGLK_API_KEY" if "SGLK_API_KEY" in rendered.keys else None


def address_of(rendered: Rendered, unit: Unit) -> str:
    """Return where a group's service answers inside the cluster."""
    return f"http://{unit.name}:{rendered.config.server.port}"


def resources(unit: Unit) -> dict[str, Any]:
    """Return what a pod of the group asks of its node; raises ConfigError for a chip whose resource nobody knows."""
    backend = unit.config.backend
    if backend.name in (SIMULATED, "cpu"):
        threads = unit.config.runtime.num_threads
        return {} if threads is None else {"requests": {"cpu": str(threads)}, "limits": {"cpu": str(threads)}}
    if backend.container.resource is None:
        raise ConfigError(
            f"backend {backend.name!r} names no Kubernetes resource of its devices; write"
            " backend.container.resource=VENDOR/NAME as its device plugin offers it"
        )
    return {"limits": {backend.container.resource: len(unit.devices)}}


def probes(rendered: Rendered) -> dict[str, Any]:
    """Return the probes of a server: ready after a real token, out of service while it drains, not killed for load."""

    def probe(path: str, failures: int, timeout_s: int) -> dict[str, Any]:
        return {
            "httpGet": {"path": path, "port": "http", **({"scheme": "HTTPS"} if _has_tls(rendered) else {})},
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": timeout_s,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe("/health_generate", start_failures(rendered), PROBE_TIMEOUT_S),
        "readinessProbe": probe("/health", 2, 5),
        # Groups that fail are started again by the server itself; only one that no longer answers is replaced.
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": 6},
    }


def start_failures(rendered: Rendered) -> int:
    """Return how many probes a server may fail while it starts."""
    return max(int(rendered.config.engine.start_timeout_s) // PROBE_PERIOD_S, 1)


def config_keys(rendered: Rendered) -> list[tuple[str, str]]:
    """Return the files beside the command line as (key of a config map, path): a key holds no `/`."""
    return [(path.replace("/", ".."), path) for path in rendered.files]


def _has_tls(rendered: Rendered) -> bool:
    return rendered.config.server.ssl_certfile is not None


def _workload(rendered: Rendered, unit: Unit) -> dict[str, Any]:
    words = serve_words(rendered, unit.words, ANYWHERE)
    container = {**_container(rendered, words), "resources": resources(unit)}
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": rendered.config.render.shared_memory}}
    ]
    if rendered.files:
        mounts.append({"name": "config", "mountPath": HOME})
        volumes.append({"name": "config", "configMap": _as_files(rendered)})
    if (folder := model_folder(unit.config)) is not None:
        mounts.append({"name": "model", "mountPath": folder, "readOnly": True})
        volumes.append({"name": "model", **_model_volume(rendered, folder)})
    return _deployment(
        rendered, unit.name, rendered.config.render.replicas, {**container, "volumeMounts": mounts}, volumes
    )


def _gateway(rendered: Rendered) -> dict[str, Any]:
    container = _container(rendered, serve_words(rendered, gateway_words(rendered), ANYWHERE))
    container["volumeMounts"] = [{"name": "weights", "mountPath": f"{GATEWAY}/weights"}]
    volumes: list[dict[str, Any]] = [{"name": "weights", "configMap": {"name": f"{rendered.name}-weights"}}]
    if group_key_file(rendered) is not None:
        container["volumeMounts"].append({"name": "keys", "mountPath": KEYS, "readOnly": True})
        volumes.append({"name": "keys", "secret": {"secretName": f"{rendered.name}-keys"}})
    if rendered.files:
        # A model that a file of the user describes is one for the gateway too.
        container["volumeMounts"].append({"name": "config", "mountPath": HOME})
        volumes.append({"name": "config", "configMap": _as_files(rendered)})
    return _deployment(rendered, rendered.name, 1, container, volumes)


def _container(rendered: Rendered, words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": "sglk",
        "image": rendered.config.render.image,
        "command": ["sglk"],
        # `$(NAME)` would be a variable of Kubernetes' own.
        "args": [word.replace("$", "$$") for word in words],
        "ports": [{"name": "http", "containerPort": rendered.config.server.port}],
        **probes(rendered),
        # Requests still come in until every proxy knows that the pod ends.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
    }
    if rendered.files:
        found["workingDir"] = HOME
    if rendered.keys:
        secret = f"{rendered.name}-keys"
        found["env"] = [
            {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for key in rendered.keys
        ]
    return found


def _deployment(
    rendered: Rendered, name: str, replicas: int, container: dict[str, Any], volumes: list[dict[str, Any]]
) -> dict[str, Any]:
    selector = {"app.kubernetes.io/name": "sglk", "app.kubernetes.io/instance": name}
    pod = {
        "terminationGracePeriodSeconds": rendered.drain_s + 5,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": volumes,
    }
    spec = {
        "replicas": replicas,
        # A device is in use until its old pod is gone.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": {**selector, "app.kubernetes.io/part-of": rendered.name}}, "spec": pod},
    }
    return {**_object(rendered, "Deployment", name), "apiVersion": "apps/v1", "spec": spec}


def _service(rendered: Rendered, name: str) -> dict[str, Any]:
    spec = {
        "selector": {"app.kubernetes.io/name": "sglk", "app.kubernetes.io/instance": name},
        "ports": [{"name": "http", "port": rendered.config.server.port, "targetPort": "http"}],
    }
    return _object(rendered, "Service", name, spec=spec)


def _object(rendered: Rendered, kind: str, name: str, **content: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if rendered.config.render.namespace is not None:
        metadata["namespace"] = rendered.config.render.namespace
    metadata["labels"] = {"app.kubernetes.io/name": "sglk", "app.kubernetes.io/part-of": rendered.name}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **content}


def _as_files(rendered: Rendered) -> dict[str, Any]:
    items = [{"key": key, "path": path} for key, path in config_keys(rendered)]
    return {"name": f"{rendered.name}-config", "items": items}


def _model_volume(rendered: Rendered, folder: str) -> dict[str, Any]:
    claim = rendered.config.render.claim
    if claim is not None:
        return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return {"hostPath": {"path": folder}}


def _advice(rendered: Rendered) -> Iterator[str]:
    if rendered.keys:
        values = " ".join(f"--from-literal={key}=..." for key in rendered.keys)
        yield f"Keys: kubectl create secret generic {rendered.name}-keys {values}"
    if has_gateway(rendered):
        yield f"Traffic: kubectl edit configmap {rendered.name}-weights, or `sglk traffic` at service {rendered.name}"
    for unit in rendered.units:
        for command in unit.commands:
            yield f"{unit.name} starts: {command}"
