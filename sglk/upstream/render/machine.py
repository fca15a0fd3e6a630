"""One machine that runs a whole deployment: a shell script, a systemd unit, a compose file."""

import shlex
from collections.abc import Sequence

from sglk.config.groups import SIMULATED
from sglk.config.schema import ServeConfig
from sglk.errors import ConfigError
from sglk.upstream.render.text import HEADER, as_yaml, commented, one_line
from sglk.upstream.render.unit import Rendered

HOME = "/etc/sglk"
"""Working directory of a rendered service: its profiles and configuration lie there."""


ANYWHERE = "0.0.0.0"
"""Where a server in a container listens: what reaches the container is decided outside."""


def serve_words(rendered: Rendered, words: Sequence[str], host: str | None = None) -> list[str]:
    """Return `sglk serve ...` as words; `host` listens there in place of what the deployment says."""
    if host is not None:
        words = [*(word for word in words if not word.lstrip("+").startswith("server.host=")), f"server.host={host}"]
    folder = ["--config-dir", "conf"] if any(path.startswith("conf/") for path in rendered.files) else []
    return ["serve", *folder, *words]


def shell(rendered: Rendered) -> dict[str, str]:
    """Return a script that serves in the foreground, from the folder that it lies in."""
    settings = rendered.config.render
    lines = ["#!/bin/sh", commented([HEADER, *_told(rendered)]).rstrip()]
    lines += [f': "${{{key}:?put the key there}}"' for key in rendered.keys]
    lines += ["set -eu", 'cd "$(dirname "$0")"', ""]
    lines.append(_broken(["exec", settings.executable, *serve_words(rendered, rendered.words)]))
    return {f"{rendered.name}.sh": "\n".join(lines) + "\n", **rendered.files}


def systemd(rendered: Rendered) -> dict[str, str]:
    """Return a unit, and what it reads, for /etc/systemd/system and /etc/sglk."""
    settings = rendered.config.render
    if not settings.executable.startswith("/"):
        raise ConfigError(
            f"render.executable={settings.executable}: a systemd unit names programs by their whole paths; write"
            " render.executable=/opt/sglk/bin/sglk or where it is"
        )
    words = " ".join(map(_unit_word, [settings.executable, *serve_words(rendered, rendered.words)]))
    about = _unit_text(f"sglk: {rendered.config.model.name} on {rendered.config.chip.name}")
    keys = (
        f"# Holds {' and '.join(rendered.keys)}.\nEnvironmentFile={HOME}/{rendered.name}.env\n" if rendered.keys else ""
    )
    unit = f"""# {HEADER}
# To /etc/systemd/system/{rendered.name}.service; the folders beside it to {HOME}.
{commented(_told(rendered))}[Unit]
Description={about}
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
User={settings.user}
WorkingDirectory={HOME}
{keys}ExecStart={words}
# SIGTERM: no new requests, running ones finish; what is left after that is ended.
KillMode=mixed
TimeoutStopSec={rendered.drain_s}
Restart=on-failure
RestartSec=5
LimitNOFILE=65536
LimitMEMLOCK=infinity
OOMPolicy=stop
NoNewPrivileges=true
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""
    return {f"{rendered.name}.service": unit, **rendered.files}


def compose(rendered: Rendered) -> dict[str, str]:
    """Return a file for `docker compose up`, from the folder that it lies in."""
    config, settings = rendered.config, rendered.config.render
    service: dict[str, object] = {
        "image": settings.image,
        # A `$` would be a variable of compose's own.
        "command": [word.replace("$", "$$") for word in ["sglk", *serve_words(rendered, rendered.words, ANYWHERE)]],
        "working_dir": HOME,
        "init": True,
        "ports": [f"127.0.0.1:{config.server.port}:{config.server.port}"],
        # Of 1024, as Kubernetes' Gi is, but called otherwise.
        "shm_size": settings.shared_memory.replace("i", "b").lower(),
        "ulimits": {"memlock": -1, "nofile": 65536},
        "restart": "unless-stopped",
        "stop_grace_period": f"{rendered.drain_s}s",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _PROBE.format(port=config.server.port)],
            "interval": "10s",
            "timeout": "25s",
            "retries": 3,
            "start_period": f"{int(config.engine.start_timeout_s)}s",
        },
    }
    if rendered.keys:
        service["environment"] = {key: f"${{{key}:?put the key there}}" for key in rendered.keys}
    volumes = [
        f"./{folder}:{HOME}/{folder}:ro" for folder in dict.fromkeys(path.partition("/")[0] for path in rendered.files)
    ]
    if (folder := model_folder(config)) is not None:
        volumes.append(f"{folder}:{folder}:ro")
    if volumes:
        service["volumes"] = volumes
    service.update(_devices(rendered))
    document = {"services": {rendered.name: service}}
    return {"compose.yaml": commented([HEADER, *_told(rendered)]) + as_yaml(document), **rendered.files}


_PROBE = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/health', timeout=20)"


def model_folder(config: ServeConfig) -> str | None:
    """Return the folder of a model's files, where they are at a path and not from the hub or a package."""
    if config.model.path is None:
        return None
    if not config.model.path.startswith("/"):
        raise ConfigError(
            f"model.path={config.model.path} means another folder on another machine; write the whole path"
        )
    return config.model.path.rstrip("/")


def _devices(rendered: Rendered) -> dict[str, object]:
    nodes: dict[str, None] = {}
    reserved: list[dict[str, object]] = []
    for unit in rendered.units:
        if unit.url is not None or unit.config.backend.name == SIMULATED:
            continue
        container = unit.config.backend.container
        indices = [device.partition(":")[2] for device in unit.devices]
        if container.driver is not None:
            reserved.append({"driver": container.driver, "device_ids": indices, "capabilities": ["gpu"]})
        else:
            nodes |= dict.fromkeys(node.replace("{index}", index) for node in container.nodes for index in indices)
    found: dict[str, object] = {}
    if reserved:
        found["deploy"] = {"resources": {"reservations": {"devices": reserved}}}
    if nodes:
        found["devices"] = [f"{node}:{node}" for node in nodes]
    return found


def _told(rendered: Rendered) -> list[str]:
    commands = [command for unit in rendered.units for command in unit.commands]
    return [f"starts: {command}" for command in commands]


def _broken(words: Sequence[str]) -> str:
    """Return a command on as many lines as it has settings."""
    head = [word for word in words if "=" not in word]
    lines = [shlex.join(head), *(shlex.quote(word) for word in words if "=" in word)]
    return " \\\n    ".join(lines)


def _unit_word(word: str) -> str:
    """Quote a word as systemd.service(5) reads it: `%` and `$` mean something there."""
    word = _unit_text(word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$"))
    return f'"{word}"' if any(sign in word for sign in " '\"\\;#") else word


def _unit_text(text: str) -> str:
    """Return text for one line of a unit."""
    return one_line(text.replace("%", "%%"))
