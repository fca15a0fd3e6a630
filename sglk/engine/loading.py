"""From a deployment to a model on its device, ready for an engine."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.deny import denials, warn_of_idle
from sglk.config.fleet import memory_of
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
from sglk.errors import BackendError, CapacityError, ConfigError
from sglk.models.loader import OpenModel
from sglk.models.tokenizer import Tokenizer
from sglk.parallel.ranks import ALONE, RankGroup, Ranks, patience_s
from sglk.plugins import create_backend
from sglk.plugins.elsewhere import address


@dataclass(frozen=True)
class Prepared:
    """A deployment on its device of which no weight is read yet, and what can be refused before has been asked."""

    config: ServeConfig
    ranks: Ranks
    runner: ModelRunner
    opened: OpenModel
    factory: str | None = None
    """Where other processes find the backend, if code registered it."""

    def load(self) -> tuple[Runner, Tokenizer]:
        """Read the weights, on all ranks; raises any SglkError."""
        if not isinstance(self.ranks, RankGroup):
            return self.load_part()
        load = _load_one_for_all if self.runner.backend.simulated else _load_ranks
        return load(self, self.ranks)

    def load_part(self) -> tuple[ModelRunner, Tokenizer]:
        """Read the weights of this rank."""
        self.opened.load()
        return self.runner, self.opened.tokenizer


def load_runner(config: ServeConfig) -> tuple[Runner, Tokenizer]:
    """Load the backend and the model of `config` for the first `tp_size` devices of its first group.

    Raises any SglkError; what `prepare` refuses, before the weights are read.
    """
    return prepare([config])[0].load()


def prepare(configs: Sequence[ServeConfig]) -> list[Prepared]:
    """Return each of `configs` on its device; one process is going to serve them all.

    Devices come first, for models may have to be downloaded. Raises any SglkError: for a device that is not there or
    cannot do what it is asked for, files that are missing or damaged, models that speak different tokens, and memory
    that all of them together do not have.
    """
    configs = [each if ranks_of(each.runtime) == 1 else _for_one_rank(each) for each in configs]
    placed = [(each, make_backend(each, 0)) for each in configs]
    for config, backend in placed:
        check_support(config.runtime, backend, _place(config))
    taken: Counter[str] = Counter()
    prepared: list[Prepared] = []
    for config, backend in placed:
        size = ranks_of(config.runtime)
        memories = {memory_of(device, config) for device in config.groups[0].devices[:size]}
        # Each replica imagines a device of its own.
        most = 0 if backend.simulated else max(taken[memory] for memory in memories)
        prepared.append(one := _prepared(config, rank_group(config, 0) if size > 1 else ALONE, backend, most))
        _check_tokens(one, prepared[0])
        try:
            taken.update(dict.fromkeys(memories, _to_take(one, most)))
        except CapacityError as error:
            if len(configs) == 1:
                raise
            raise CapacityError(f"device group {config.groups[0].name!r}: {error}") from error
    return prepared


def load_rank(config: ServeConfig, ranks: Ranks) -> tuple[ModelRunner, Tokenizer]:
    """Load backend and model for the device of one of `ranks`; raises any SglkError."""
    return load_on(config, ranks, make_backend(config, ranks.rank))


def load_on(config: ServeConfig, ranks: Ranks, backend: DeviceBackend) -> tuple[ModelRunner, Tokenizer]:
    """Load the model of `config`, or one of `ranks`' part of it, onto `backend`; raises any SglkError."""
    check_support(config.runtime, backend, _place(config))
    return _prepared(config, ranks, backend).load_part()


def _prepared(config: ServeConfig, ranks: Ranks, backend: DeviceBackend, taken: int = 0) -> Prepared:
    opened = OpenModel(config.model, config.runtime, backend, _place(config), ranks, taken=taken)
    if backend.simulated:
        return Prepared(config, ranks, _imagined_runner(config, opened, backend), opened)
    runner = ModelRunner(opened.model, backend, config.runtime, quarantine=config.backend.quarantine)
    factory = address(backend_name(config)) if ranks.size > 1 and ranks.rank == 0 else None
    return Prepared(config, ranks, runner, opened, factory)


def _to_take(prepared: Prepared, taken: int) -> int:
    """Return the bytes that a replica will hold of its device beside `taken`; CapacityError where it has no room."""
    runner, runtime = prepared.runner, prepared.config.runtime
    shared = runner.backend.capabilities.host_memory
    least = prepared.opened.least_bytes
    weights = least * (prepared.ranks.size if shared else 1)
    pool = runner.fitting_kv_bytes(runtime, least, weights + taken)
    # The system commits the pages of a pool in main memory when they are written.
    return weights if shared else weights + pool


def _check_tokens(prepared: Prepared, first: Prepared) -> None:
    """Refuse a replica to which the token ids of a prompt mean something else."""
    sample = "The quick brown fox, 1234 jumps!\n"
    tokenizer, other = prepared.opened.tokenizer, first.opened.tokenizer
    if prepared.runner.vocab_size != first.runner.vocab_size or tokenizer.encode(sample) != other.encode(sample):
        raise ConfigError(
            f"the model of device group {prepared.config.groups[0].name!r} has another tokenizer than that of"
            f" {first.config.groups[0].name!r}; requests can go to either only where all device groups share one"
        )


def _imagined_runner(config: ServeConfig, opened: OpenModel, backend: DeviceBackend) -> ModelRunner:
    """Return a runner for a device that computes nothing."""
    model, spec = opened.model, opened.spec
    words = Words.of(opened.tokenizer, spec.vocab_size, spec.eos_token_ids)
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


def _load_one_for_all(prepared: Prepared, ranks: RankGroup) -> tuple[Runner, Tokenizer]:
    """Load the first rank alone, of a device that computes nothing: the others would do the same at the same time."""
    runner, tokenizer = prepared.load_part()
    with TemporaryDirectory(prefix="sglk-ranks-") as folder:
        RankRunner(runner, ranks).join(Path(folder) / "store")
    return runner, tokenizer


def _load_ranks(prepared: Prepared, ranks: RankGroup) -> tuple[ParallelRunner, Tokenizer]:
    """Start the processes of the other ranks, load all parts at the same time, and connect them."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(TemporaryDirectory(prefix="sglk-ranks-")))
        followers = []
        for rank in range(1, ranks.size):
            followers.append(follower := Follower(rank, folder))
            ending.callback(follower.stop)
            follower.send(Load(prepared.config, rank, prepared.factory))
        runner, tokenizer = prepared.load_part()
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
