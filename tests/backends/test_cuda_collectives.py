"""How the cuda backend joins NCCL, on a stand-in; nothing here is a verification on hardware."""

import ast
import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from sglk.backends.cuda_collectives import ERROR_HANDLING, join_nccl
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.parallel.ranks import RankGroup, RanksLost
from sglk.testing.tiny import tiny_config
from sglk.testing.tiny_weights import tiny_weights
from tests.models.greedy import ArrayWeights
from tests.parallel.in_threads import load_part

DEVICE = torch.device("cuda", 1)


class StandIn:
    """torch's ProcessGroupNCCL as its stubs declare it, of ranks that bring nothing."""

    class Options:
        _timeout: timedelta

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self.joined = (rank, size, options._timeout, os.environ.get(ERROR_HANDLING))
        self.connected: list[torch.device] = []
        self.error = "SUCCESS"

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.connected.append(device)

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return SimpleNamespace(wait=lambda: True)

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor]) -> Any:
        for output in output_tensors[0]:
            output.copy_(input_tensors[0])
        return SimpleNamespace(wait=lambda: True)

    def get_error(self) -> Any:
        return SimpleNamespace(name=self.error)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.delenv(ERROR_HANDLING, raising=False)


@pytest.mark.usefixtures("nccl")
def test_ranks_are_connected_when_they_have_joined_and_a_lost_one_ends_sums_not_the_process() -> None:
    group: Any = join_nccl(HashStore(), 1, 2, timedelta(seconds=9), DEVICE)
    assert group._group.joined == (1, 2, timedelta(seconds=9), "2")
    assert group._group.connected == [DEVICE]


@pytest.mark.usefixtures("nccl")
def test_what_the_user_says_of_error_handling_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ERROR_HANDLING, "3")
    group: Any = join_nccl(HashStore(), 0, 2, timedelta(seconds=9), DEVICE)
    assert group._group.joined[3] == "3"


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("deterministic", [False, True], ids=["sums", "gathers"])
def test_no_token_comes_out_of_a_step_whose_exchanges_were_given_up(deterministic: bool) -> None:
    config = tiny_config()
    part = load_part(config, ArrayWeights(tiny_weights(config)), RankGroup(0, 2, deterministic=deterministic))
    group: Any = join_nccl(HashStore(), 0, 2, timedelta(seconds=9), DEVICE)
    part.ranks.join(group)
    part.allocate_kv(1, 4)
    batch = Batch([BatchRow("a", [1, 2], 0, [0], SamplingParams(), 0, 0, samples=True)], 1)
    assert isinstance(part.run(batch)[0], int)
    group._group.error = "TIMEOUT"
    with pytest.raises(RanksLost, match=r"^NCCL reports TIMEOUT$"):
        part.run(batch)


def test_torch_declares_what_the_stand_in_stands_in_for() -> None:
    """The compiled class is in builds for CUDA alone, its declaration in all."""
    stubs = Path(torch.__path__[0], "_C", "_distributed_c10d.pyi").read_text()
    declared = {node.name: node for node in ast.parse(stubs).body if isinstance(node, ast.ClassDef)}
    names = {
        owner: {node.name for node in declared[owner].body if isinstance(node, ast.FunctionDef)} for owner in declared
    }
    (made,) = (node for node in declared["ProcessGroupNCCL"].body if getattr(node, "name", "") == "__init__")
    assert isinstance(made, ast.FunctionDef)
    assert [argument.arg for argument in made.args.args] == ["self", "store", "rank", "size", "options"]
    assert [ast.unparse(base) for base in declared["ProcessGroupNCCL"].bases] == ["Backend"]
    assert {"eager_connect_single_device", "get_error"} <= names["Backend"]
    assert {"allreduce", "allgather"} <= names["ProcessGroup"]
    assert "SUCCESS" in ast.unparse(declared["ErrorType"])
