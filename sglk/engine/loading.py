"""From a deployment to a model on its device, ready for an engine."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.deny import denials, warn_of_idle
from sglk.config.schema import GroupConfig, ServeConfig, ServerConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.engine.batch import Runner
from sglk.engine.follower import Follower
from sglk.engine.invented import InventedTokens, Words
from sglk.engine.parallel_runner import ParallelRunner
from sglk.engine.rank_messages import Call, Load
from sglk.engine.rank_runner import RankRunner
from sglk.engine.remembered import RememberedSteps
from sglk.engine.runner import ModelRunner
from sglk.engine.support import check_support
from sglk.errors import BackendError
from sglk.models.loader import LoadedModel, load_model
from sglk.models.tokenizer import Tokenizer
from sglk.parallel.ranks import ALONE, RankGroup, Ranks, patience_s
from sglk.plugins import create_backend
from sglk.plugins.elsewhere import address


def load_runner(config: ServeConfig) -> tuple[Runner, Tokenizer]:
    """Load the backend and the model of `config` for the first `tp_size` devices of its first group.

    What device or engine cannot do is refused before the model's files are read. Raises any SglkError.
    """
    if ranks_of(config.runtime) == 1:
        return load_rank(config, ALONE)
    config = _for_one_rank(config)
    backend = make_backend(config, 0)
    return _load_one_for_all(config, backend) if backend.simulated else _load_ranks(config, backend)


def load_rank(config: ServeConfig, ranks: Ranks) -> tuple[ModelRunner, Tokenizer]:
    """Load backend and model for the device of one of `ranks`; raises any SglkError."""
    return load_on(config, ranks, make_backend(config, ranks.rank))


def load_on(config: ServeConfig, ranks: Ranks, backend: DeviceBackend) -> tuple[ModelRunner, Tokenizer]:
    """Load the model of `config`, or one of `ranks`' part of it, onto `backend`; raises any SglkError."""
    where = _place(config)
    check_support(config.runtime, backend, where)
    loaded = load_model(config.model, config.runtime, backend, where, ranks)
    if backend.simulated:
        return _imagined_runner(config, loaded, backend), loaded.tokenizer
    runner = ModelRunner(loaded.model, backend, config.runtime, quarantine=config.backend.quarantine)
    return runner, loaded.tokenizer


def _imagined_runner(config: ServeConfig, loaded: LoadedModel, backend: DeviceBackend) -> ModelRunner:
    """Return a runner for a device that computes nothing."""
    model, spec = loaded.model, loaded.spec
    words = Words.of(loaded.tokenizer, spec.vocab_size, spec.eos_token_ids)
    sampler = InventedTokens(backend, model.dtype, spec.vocab_size, words)
    if backend.clock is not None:
        model = RememberedSteps(model, backend, backend.clock)
    return ModelRunner(model, backend, config.runtime, sampler=sampler)


def make_backend(config: ServeConfig, rank: int) -> DeviceBackend:
    """Return the device that one rank of `config` runs on; raises any SglkError."""
    group = config.groups[0]
    backend: DeviceBackend = create_backend(
        backend_name(config),
        num_threads=config.runtime.num_threads,
        fallback=config.backend.fallback,
        deny=denials(config.backend.deny),
        chip=config.chip,
        index=_index(group.devices[rank]),
        **config.backend.options,
    )
    _check_devices(group, ranks_of(config.runtime), backend)
    warn_of_idle(backend.ops)
    return backend


def backend_name(config: ServeConfig) -> str:
    """Return the name of the backend that drives the chip of `config`."""
    return config.chip.backend if config.backend.name == "auto" else config.backend.name


def _place(config: ServeConfig) -> str:
    """Where a model runs, for messages."""
    return f"backend {backend_name(config)!r} of chip {config.chip.name!r}, device group {config.groups[0].name!r}"


def _index(device: str) -> int:
    return int(device.rpartition(":")[2])


def _check_devices(group: GroupConfig, ranks: int, backend: DeviceBackend) -> None:
    """Refuse the first of the group's devices that the machine does not have."""
    found = backend.num_devices(ranks)
    for device in group.devices[:ranks]:
        if found is not None and _index(device) >= found:
            kind = device.rpartition(":")[0]
            names = f"there is only {kind}:0" if found == 1 else f"there are only {kind}:0 to {kind}:{found - 1}"
            raise BackendError(
                f"device {device!r} of group {group.name!r} does not exist; {names}, so name no other in groups"
            )


def _load_one_for_all(config: ServeConfig, backend: DeviceBackend) -> tuple[Runner, Tokenizer]:
    """Load the first rank alone, of a device that computes nothing: the others would do the same at the same time."""
    ranks = rank_group(config, 0)
    runner, tokenizer = load_on(config, ranks, backend)
    with TemporaryDirectory(prefix="sglk-ranks-") as folder:
        RankRunner(runner, ranks).join(Path(folder) / "store")
    return runner, tokenizer


def _load_ranks(config: ServeConfig, backend: DeviceBackend) -> tuple[ParallelRunner, Tokenizer]:
    """Start the processes of the other ranks, load all parts at the same time, and connect them."""
    size, factory = ranks_of(config.runtime), address(backend_name(config))
    with ExitStack() as ending:
        folder = Path(ending.enter_context(TemporaryDirectory(prefix="sglk-ranks-")))
        followers = []
        for rank in range(1, size):
            followers.append(follower := Follower(rank, folder))
            ending.callback(follower.stop)
            follower.send(Load(config, rank, factory))
        ranks = rank_group(config, 0)
        runner, tokenizer = load_on(config, ranks, backend)
        for follower in followers:
            follower.receive()
        first, store = RankRunner(runner, ranks), folder / "store"
        for follower in followers:
            follower.send(Call("join", (store,)))
        first.join(store)
        for follower in followers:
            follower.receive()
        return ParallelRunner(first, followers, ending.pop_all()), tokenizer


def rank_group(config: ServeConfig, rank: int) -> RankGroup:
    """Return the place of one rank of `config`, not yet joined."""
    runtime = config.runtime
    return RankGroup(rank, ranks_of(runtime), patience_s(config.router), runtime.enable_deterministic_inference)


def _for_one_rank(config: ServeConfig) -> ServeConfig:
    """Return what all ranks load from: an equal share of the processor's threads, and nothing of the server's keys."""
    threads = config.runtime.num_threads or torch.get_num_threads()
    runtime = replace(config.runtime, num_threads=max(1, threads // ranks_of(config.runtime)))
    return replace(config, runtime=runtime, server=ServerConfig())
