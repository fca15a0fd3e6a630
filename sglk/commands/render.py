"""`sglk render`: the files that run a deployment elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sglk.atomic_file import obstacle, write_text
from sglk.commands.flags import common_flags
from sglk.commands.help import command_help
from sglk.commands.terminal import warn
from sglk.config.compose import compose
from sglk.config.fleet import ReplicaConfig
from sglk.config.profiles import NATIVE
from sglk.config.render_schema import RenderConfig
from sglk.errors import ConfigError, SglkError
from sglk.planner.placement import place
from sglk.upstream.compose import compose_command
from sglk.upstream.render.targets import render
from sglk.upstream.render.text import HEADER
from sglk.upstream.render.unit import rendered

_EXAMPLES = (
    "sglk render target=systemd chip=l20 model=qwen7b render.executable=/opt/sglk/bin/sglk",
    "sglk render target=kubernetes chip=h100 model=qwen7b engine=sglang render.output=./deploy",
    """sglk render target=kubernetes model=qwen7b groups="'cuda:0,cuda:1;cuda:2'\"""",
    """sglk render target=nginx model=qwen7b 'render.routes={qwen32b: ["10.0.0.8:8000=80", "10.0.0.9:8000=20"]}'""",
)
_SUMMARY = (
    "Write the files that run a composed deployment elsewhere: a shell script, a systemd unit, a compose file,\n"
    "Kubernetes objects, values for the chart in deploy/helm, or an nginx in front. They carry no keys."
)


def run(arguments: Sequence[str]) -> int:
    """Print or write the files; returns 0."""
    flags = common_flags(arguments)
    if flags.help:
        command_help("render", _SUMMARY, RenderConfig, _EXAMPLES)
        return 0
    composed = compose("render", flags.arguments, flags.config_dir)
    warn(composed.warnings)
    placement = place(composed, flags.config_dir, elsewhere=True)
    commands = {replica.name: _command(replica) for replica in placement.replicas if _is_upstream(replica)}
    files = render(composed.config.target, rendered(composed, placement.replicas, flags.config_dir, commands))
    if composed.config.render.output is None:
        _print(files)
    else:
        _write(files, Path(composed.config.render.output))
    return 0


def _is_upstream(replica: ReplicaConfig) -> bool:
    return replica.group.url is None and replica.config.engine.name != NATIVE


def _command(replica: ReplicaConfig) -> str:
    # Where no interpreter is named it is that of the machine which serves, not the one that renders.
    engine = replace(replica.config.engine, python=replica.config.engine.python or "python")
    return compose_command(replace(replica.config, engine=engine), inherited=replica.inherited).shell()


def _print(files: Mapping[str, str]) -> None:
    for number, (name, text) in enumerate(files.items()):
        if len(files) > 1:
            print(f"{'' if number == 0 else chr(10)}# ===== {name} =====")
        print(text, end="" if text.endswith("\n") else "\n")


def _write(files: Mapping[str, str], folder: Path) -> None:
    for name in files:
        path = folder / name
        if (problem := obstacle(path)) is not None:
            raise SglkError(f"cannot write {str(path)!r}: {problem}; write another render.output")
        if path.is_file() and HEADER not in path.read_text(encoding="utf-8", errors="replace") and _is_main(name):
            raise ConfigError(f"{str(path)!r} is not a file of sglk's; remove it, or write another render.output")
    for name, text in files.items():
        write_text(folder / name, text)
        print(folder / name)


def _is_main(name: str) -> bool:
    return "/" not in name
