"""From one replica's configuration to the command that starts its upstream engine."""

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sglk.config.check_nodes import local_devices
from sglk.config.engine_schema import UpstreamConfig
from sglk.config.flags import ALIASES
from sglk.config.groups import SIMULATED
from sglk.config.home import expanded
from sglk.config.profiles import NATIVE
from sglk.config.schema import ModelConfig, ServeConfig
from sglk.config.secrets import masked
from sglk.errors import ConfigError, SglkError
from sglk.models.files import find_files
from sglk.upstream.arguments import Arguments
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.devices import visible
from sglk.upstream.dialects import DIALECTS, Dialect
from sglk.upstream.fit import fitted
from sglk.upstream.table import flag_table

LOOPBACK = "127.0.0.1"
OTHER_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".npz"})
"""Ends of the names of files beside a GGUF file that an engine may take the weights from in its place."""

FIRST_PORT = 30000
"""What is shown where no port has been chosen yet."""


def compose_command(
    config: ServeConfig,
    *,
    port: int = FIRST_PORT,
    environ: Mapping[str, str] = MappingProxyType({}),
    key: str | None = None,
    inherited: Collection[str] = (),
) -> UpstreamCommand:
    """Return the command for a deployment of one replica.

    The engine listens on the loopback interface alone, for sglk's router. `environ` is what its process inherits: none
    of its variables is set another time. `key` is one that the engine may ask the router for, `inherited` are the
    runtime parameters that nobody stated for this engine. Raises ConfigError, or ModelLoadError for a model that is
    nowhere, for what the version cannot do or does not know.
    """
    config, left_out = fitted(config, inherited)
    engine = config.engine
    dialect = DIALECTS[engine.name]
    if config.backend.name == SIMULATED:
        raise ConfigError(f"backend=sim simulates devices for sglk's own engine, not for engine={engine.name}")
    arguments = Arguments(flag_table(engine.name, str(engine.version)))
    source = model_source(config.model)
    _require_readable(source, config, dialect, arguments.table.title)
    dialect.add_arguments(arguments, config, source)
    arguments.set("--host", LOOPBACK, "server.host")
    arguments.set("--port", port, "server.port")
    _add_extra(arguments, config, dialect)
    secrets = {} if key is None or dialect.key_variable is None else {dialect.key_variable: key}
    return UpstreamCommand(
        engine=engine.name,
        version=arguments.table.version,
        argv=(engine.python or sys.executable, "-m", *_entry(config, dialect), *arguments.words()),
        environment=MappingProxyType(dict(_environment(config, dialect, environ))),
        secrets=MappingProxyType(secrets),
        notes=(*left_out, *arguments.notes, *_notes(config)),
        url=f"http://{LOOPBACK}:{port}",
    )


def _entry(config: ServeConfig, dialect: Dialect) -> tuple[str, ...]:
    return dialect.worker if config.engine.node_rank > 0 and dialect.worker else (dialect.module,)


def problem(config: ServeConfig) -> str | None:
    """Return why the engine of a deployment cannot be started as it is set; None where it can, and for sglk's own."""
    if config.engine.name == NATIVE:
        return None
    try:
        compose_command(config)
    except SglkError as error:
        return str(error)
    return None


def model_source(model: ModelConfig) -> str:
    """Return the path or the hub name that an upstream engine loads a model from."""
    if model.path is not None:
        return str(expanded(model.path).absolute())
    if model.package is None and model.hub_id is not None:
        return model.hub_id
    return str(find_files(model).path)


def _require_readable(source: str, config: ServeConfig, dialect: Dialect, title: str) -> None:
    """Raise ConfigError for a GGUF file where the engine has no use for one, which it finds out after a minute."""
    here = config.backend.upstream.get(config.engine.name, UpstreamConfig()).gguf
    if (dialect.gguf and here) or not _is_gguf(source, config.runtime.load_format):
        return
    where = f" with backend={config.backend.name}" if dialect.gguf else ""
    raise ConfigError(
        f"model={config.model.name} is GGUF ({source}), which {title} does not serve{where}; choose a model of"
        f" safetensors, such as model=qwen0_5b or model=<folder>, or engine=native"
    )


def _is_gguf(source: str, load_format: str) -> bool:
    path = Path(source)
    if load_format == "gguf" or path.suffix == ".gguf":
        return True
    needs_none = load_format == "dummy" and (path / "config.json").exists()
    return any(path.glob("*.gguf")) and not needs_none and not _has_other_weights(path)


def _has_other_weights(folder: Path) -> bool:
    return (folder / "config.json").exists() and any(file.suffix in OTHER_WEIGHTS for file in folder.rglob("*"))


def flag_name(name: str) -> str:
    """Return the flag that a key of `engine.extra_args` means, dashes or not."""
    return f"--{name.lstrip('-').replace('_', '-')}"


def _add_extra(arguments: Arguments, config: ServeConfig, dialect: Dialect) -> None:
    extra = {flag_name(name): (value, f"engine.extra_args.{name}") for name, value in config.engine.extra_args.items()}
    chips = config.backend.upstream.get(config.engine.name, UpstreamConfig()).flags
    place = f"backend.upstream.{config.engine.name}.flags"
    given: dict[str, tuple[Any, str]] = {flag_name(name): (value, f"{place}.{name}") for name, value in chips.items()}
    for name, (value, key) in {**given, **extra}.items():
        if value is None and key.startswith("engine."):
            continue  # takes away what the chip asks for
        if arguments.table.find(name) is None and (ours := _setting_of(name)) is not None:
            raise ConfigError(f"{arguments.table.title} has no flag {name}; write {ours} in place of {key}")
        flag = arguments.table.require(name)
        setting = dialect.owned.get(flag.name) or arguments.owner(flag)
        if setting is not None:
            raise ConfigError(f"{key} sets {flag.name}, which sglk sets by {setting}; write {setting} in its place")
        if flag.type == "text" and masked(value, flag.name.lstrip("-")) != value:
            raise ConfigError(
                f"{key}: {flag.name} is a secret, and every user of the machine sees command lines; set it in the"
                f" environment of `sglk serve`, such as HF_TOKEN for a token of the hub"
            )
        if flag.stands_alone and value is False and flag.negation is None:
            continue
        arguments.set(name, value, key)


def _setting_of(name: str) -> str | None:
    """Return the setting of sglk behind a flag that another engine, or sglk itself, is known for."""
    others = (dialect.owned.get(name) for dialect in DIALECTS.values())
    return next(filter(None, others), ALIASES.get(name.removeprefix("--")))


def _environment(config: ServeConfig, dialect: Dialect, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    chips = config.backend.upstream.get(config.engine.name, UpstreamConfig()).environment
    for name, value in {**config.backend.environment, **chips, **dialect.variables(config)}.items():
        if name not in environ:
            yield name, str(value)
    if (variable := config.backend.visible_devices) is not None:
        yield variable, visible(local_devices(config), variable, environ)
    if config.runtime.num_threads is not None:
        yield "OMP_NUM_THREADS", str(config.runtime.num_threads)


def _notes(config: ServeConfig) -> Iterator[str]:
    backend = config.backend
    if backend.deny or backend.quarantine or backend.fallback != "warn":
        yield f"backend.fallback, .deny and .quarantine are about sglk's own ops; {config.engine.name} has its own"
