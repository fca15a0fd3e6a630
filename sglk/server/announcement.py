"""What `sglk serve` says once it serves: to people, and in one line to a parent process."""

import contextlib
import json
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import sglk
from sglk.config.home import expanded
from sglk.config.model_argument import tune_command
from sglk.config.provenance import ProfileRecord
from sglk.config.schema import ServeConfig, ServerConfig
from sglk.engine.grammar import INSTALL, guided_decoding_available
from sglk.server.deployment import Deployment
from sglk.server.entry import Entry
from sglk.server.gateway import Gateway
from sglk.server.port import is_loopback
from sglk.upstream.launch import log_file

logger = logging.getLogger(__name__)

READY = "SGLK_READY"
"""Begins the line for parent processes; a JSON object with `url`, `pid`, `model` and `version` follows."""


def announcement(entry: Entry, url: str) -> Iterator[str]:
    """Yield the lines for people."""
    config = entry.config
    yield from _gateway(entry) if isinstance(entry, Gateway) else _engines(entry)
    if len(groups := entry.fleet.router.groups) > 1:
        shares = entry.fleet.router.weights.shares
        yield f"traffic: {', '.join(f'{name} {shares[name]:g}' for name in groups)}; move it with: sglk traffic"
    yield from exposure(config.server)
    yield from open_secrets(config)
    if not isinstance(entry, Gateway) and not guided_decoding_available():
        yield f"guided decoding (JSON schemas, regular expressions) is off; switch it on with: {INSTALL}"
    yield from _profiles(entry)
    yield f"{url}  (live page: {url}/dashboard, API documentation: {url}/docs)"
    yield f"try: {try_line(entry, url)}"


def _engines(entry: Entry) -> Iterator[str]:
    engines = entry.fleet.engines
    for name, engine in engines.items():
        config = entry.fleet.configs[name].config
        device = engine.device_info.get("name", config.backend.name)
        capacity = engine.stats().kv_capacity_tokens
        where = f"{name}: " if len(engines) > 1 else ""
        yield f"serving {entry.model_name} on {where}{config.chip.name} ({device}), KV cache for {capacity} tokens"
    if simulated := [name for name, engine in engines.items() if engine.simulated]:
        which = "simulated" if len(simulated) == len(engines) else f"simulated: {', '.join(simulated)}"
        yield f"{which}; times come from the chip's peak figures, answers are words without meaning"


def _gateway(entry: Entry) -> Iterator[str]:
    down = {each.name: each.engine.failure for each in entry.fleet.router.replicas}
    for name, replica in entry.fleet.configs.items():
        engine, devices = replica.config.engine, ", ".join(replica.config.groups[0].devices)
        launched = f"{engine.name} {engine.version} on {devices} (log: {log_file(replica)})"
        if down[name] is not None:
            yield f"WARNING: serving without {name}, which is looked for again: {down[name]}"
            continue
        yield f"serving {entry.model_name} by {name}: {replica.group.url or launched}"


def _profiles(entry: Entry) -> Iterator[str]:
    """Yield a line for each chip and model that engines of this server run on."""
    own = {tune_command(each.config): each.config for each in entry.fleet.configs.values() if each.group.url is None}
    for config in own.values():
        where = f"{config.chip.name}: " if len(own) > 1 else ""
        known = config.profile is not None and config.profile == entry.config.profile
        yield where + profile_line(config, entry.profile_path if known else None)


def exposure(server: ServerConfig) -> Iterator[str]:
    """Yield what whoever starts a server for other machines should know of it."""
    if is_loopback(server.host):
        return
    if server.api_key is None:
        told = "whoever reaches it may use the model"
        if server.admin_api_key is None:
            told += ", and the admin routes are closed"
        yield f"WARNING: other machines reach this server and it has no key: {told}; set server.api_key_file=FILE"
    if server.ssl_certfile is None and server.api_key is not None:
        yield "WARNING: keys and prompts cross the network in the clear; set server.ssl_certfile, or use a proxy"


def open_secrets(config: ServeConfig) -> Iterator[str]:
    """Yield the files of keys that every user of this machine may read."""
    server = config.server
    files = {
        "server.api_key_file": server.api_key_file,
        "server.admin_api_key_file": server.admin_api_key_file,
        "server.ssl_keyfile": server.ssl_keyfile,
        **{f"api_key_file of group {group.name!r}": group.api_key_file for group in config.groups},
    }
    for name, file in files.items():
        if file is None:
            continue
        with contextlib.suppress(OSError):  # one that has gone since it was read
            if expanded(file).stat().st_mode & stat.S_IROTH:
                yield f"WARNING: {name}={file} can be read by every user of this machine; chmod 600 it"


def ready_line(deployment: Entry, url: str) -> str:
    """Return the line for parent processes."""
    facts = {"url": url, "pid": os.getpid(), "model": deployment.model_name, "version": sglk.__version__}
    return f"{READY} {json.dumps(facts)}"


def say(lines: Iterable[str]) -> None:
    """Print `lines`; a full disk or a closed output is no reason not to serve."""
    try:
        print("\n".join(lines), flush=True)
    except (OSError, ValueError) as error:
        logger.warning("cannot announce on standard output: %s", error)
        if not sys.stdout.closed:
            # What is left in the buffer would be tried again at the process's end.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)


def profile_line(config: ServeConfig, path: Path | None) -> str:
    """Say which tuned profile is in use and what it promises, or how to get one."""
    profile = config.profile
    if profile is None:
        return f"no tuned profile in use; make one with: {tune_command(config)} workload=chat"
    when = profile.created[:10] if profile.created else "at an unknown time"
    facts = [f"{profile.kind} {when}", *_gains(profile)]
    which = "its tuned profile" if path is None else f"profile {_shortest(path)}"
    return f"using {which} ({', '.join(facts)})"


def _gains(profile: ProfileRecord) -> Iterator[str]:
    for metric, gain in profile.gain.items():
        ratio = gain.get("ratio") if isinstance(gain, dict) else None
        # A file that was written by hand may hold anything.
        if isinstance(ratio, int | float):
            yield f"{metric} {100 * (ratio - 1):+.0f} % against the defaults"


def _shortest(path: Path) -> Path:
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the current directory was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def try_line(deployment: Entry, url: str) -> str:
    """Return a curl command that shows the model at work, greedily: the first answer should be one to rely on."""
    key = " -H 'Authorization: Bearer KEY'" if deployment.config.server.api_key else ""
    route, body = "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
    if isinstance(deployment, Deployment) and deployment.can_chat:
        question = "What is the capital of France? Answer in one sentence."
        route, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": question}], "temperature": 0}
    return f"curl -s {url}{route}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
