"""The ranks of a model as threads of this process: as ranks in processes compute, without their start."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine.rank_runner import RankRunner
from sglk.engine.runner import ModelRunner
from sglk.models.loader import load_model
from sglk.models.registry import model_class
from sglk.models.split import RankPart
from sglk.parallel.ranks import RankGroup
from sglk.testing.tiny_weights import tiny_weights
from tests.models.greedy import ArrayWeights, Stepper, spec_of

T = TypeVar("T")


def in_ranks(config: dict[str, Any], size: int, act: Callable[[RankRunner], T]) -> list[T]:
    """Split the tiny model over `size` ranks, call `act` in all at once, and return what it returns, by rank."""
    arrays = ArrayWeights(tiny_weights(config))
    return _together(size, lambda ranks: load_part(config, arrays, ranks), act)


def from_files(path: Path, size: int, act: Callable[[RankRunner], T], **runtime: Any) -> list[T]:
    """Split the model of a folder or file over `size` ranks, and call `act` in all at once."""
    settings = RuntimeConfig(**runtime)

    def load(ranks: RankGroup) -> RankRunner:
        backend = CpuBackend(num_threads=1)
        loaded = load_model(ModelConfig(name="tiny", path=str(path)), settings, backend, None, ranks)
        return RankRunner(ModelRunner(loaded.model, backend, settings), ranks)

    return _together(size, load, act, settings.enable_deterministic_inference)


def _together(
    size: int,
    load: Callable[[RankGroup], RankRunner],
    act: Callable[[RankRunner], T],
    deterministic: bool | None = None,
) -> list[T]:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(size) as pool:

        def run(rank: int) -> T:
            part = load(RankGroup(rank, size, deterministic=deterministic))
            part.join(Path(folder) / "store")
            return act(part)

        return list(pool.map(run, range(size)))


def load_part(config: dict[str, Any], source: Any, ranks: RankGroup) -> RankRunner:
    """Return the part of one rank, not yet joined."""
    backend = CpuBackend(num_threads=1)
    part = RankPart(spec_of(config), ranks, "tiny")
    model = model_class(part.spec.architecture)(part.spec, backend, torch.float32, ranks)
    model.load_weights(source, part)
    return RankRunner(ModelRunner(model, backend, RuntimeConfig()), ranks)


def continued(runner: Any, prompts: Sequence[Sequence[int]], count: int, chunk: int) -> list[list[int]]:
    """Continue all prompts greedily in one batch; `runner` is a ModelRunner or a RankRunner."""
    stepper = Stepper(runner, 4, 128)
    requests = [stepper.add(prompt) for prompt in prompts]
    for request in requests:
        stepper.prefill(request, chunk)
    for _ in range(count - 1):
        stepper.step(decodes=requests)
    return [stepper.answer(request) for request in requests]
