"""A rank that fails keeps the others neither waiting nor out of step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.engine.batch import Batch, BatchRow
from sglk.engine.logits import LogitRules
from sglk.engine.messages import SamplingParams
from sglk.engine.rank_runner import RankRunner, without_results
from sglk.errors import CapacityError
from sglk.parallel.ranks import RankGroup, RanksLost
from sglk.testing.tiny import tiny_config, write_tiny_model
from sglk.testing.tiny_weights import tiny_weights
from tests.models.greedy import ArrayWeights
from tests.parallel.in_threads import continued, from_files, load_part

CONFIG = tiny_config("Qwen2MoeForCausalLM")
PROMPTS = [list(range(30, 47)), [5]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), architecture="Qwen2MoeForCausalLM")


class FailsOnce:
    """A piece of a model that raises the first time it is used."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece
        self.failed = False

    def __call__(self, *arguments: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise CapacityError("no room for it")
        return self.piece(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.piece, name)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("deterministic", [None, False])
@pytest.mark.parametrize(
    ("owner", "piece"), [("model", "embedding"), ("first", "mlp"), ("last", "mlp"), ("model", "head")]
)
def test_a_step_that_fails_on_one_rank_is_over_on_all(
    folder: Path, rank: int, deterministic: bool | None, owner: str, piece: str
) -> None:
    def act(part: RankRunner) -> tuple[str, list[list[int]]]:
        model: Any = part.runner.model
        expected = continued(part, PROMPTS, 6, chunk=10)
        place = {"model": model, "first": model.layers[0], "last": model.layers[-1]}[owner]
        if part.ranks.rank == rank:
            setattr(place, piece, FailsOnce(getattr(place, piece)))
        part.allocate_kv(1, 4)
        try:
            part.run(Batch([BatchRow("bad", [1, 2, 3], 0, [0], SamplingParams(), 0, 0, samples=True)], 1))
            outcome = "computed"
        except CapacityError as error:
            outcome = str(error)
        assert part.ranks.exchanges == len(model.exchanges)
        assert continued(part, PROMPTS, 6, chunk=10) == expected
        return outcome, expected

    outcomes = from_files(folder, 2, act, enable_deterministic_inference=deterministic)
    assert [words for words, _ in outcomes] == ["no room for it" if one == rank else "computed" for one in range(2)]
    assert outcomes[0][1] == outcomes[1][1]


# Of a gathered layer: inputs of `o_proj`, its outputs, of two experts of a token, of the shared one, their outputs.
GATHERED = [(64, 1, True), (64, 1, True), (32, 2, True), (48, 1, True), (64, 1, True)]


@pytest.mark.parametrize(
    ("scheme", "deterministic", "exchanges"),
    [
        (None, None, GATHERED),
        (None, False, [(64, 1, False)] * 2),
        # Ranks that have a part of a token cannot round it.
        ("w8a8", False, GATHERED),
        ("w8a16", False, [(64, 1, False)] * 2),
    ],
)
def test_a_step_exchanges_what_the_model_says(
    folder: Path, scheme: str | None, deterministic: bool | None, exchanges: list[tuple[int, int, bool]]
) -> None:
    def act(part: RankRunner) -> list[int]:
        part.allocate_kv(1, 4)
        of_model = [(each.width, each.lines, each.gathered) for each in part.runner.model.exchanges]
        assert of_model == exchanges * 2
        counts = []
        for samples in (True, False):
            part.run(Batch([BatchRow("a", [1, 2], 0, [0], SamplingParams(), 0, 0, samples)], 1))
            counts.append(part.ranks.exchanges)
        return counts

    runtime = {"quantization": scheme, "enable_deterministic_inference": deterministic}
    assert from_files(folder, 2, act, **runtime) == [[2 * len(exchanges)] * 2] * 2


def test_ranks_that_cannot_be_reached_are_lost() -> None:
    class Gone:
        def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> Any:
            raise RuntimeError("connection reset")

    part = load_part(CONFIG, ArrayWeights(tiny_weights(CONFIG)), RankGroup(1, 2))
    part.ranks.join(Gone())
    part.allocate_kv(1, 4)
    with pytest.raises(RanksLost, match="connection reset"):
        part.run(Batch([BatchRow("a", [1, 2], 0, [0], SamplingParams(), 0, 0, samples=True)], 1))


def test_followers_learn_tokens_and_pages_and_nothing_of_the_request() -> None:
    sampling = SamplingParams(temperature=0.5, logit_bias=((3, 1.0),), logprobs=2)
    rules = LogitRules(sampling, 3, frozenset())
    row = BatchRow("r", (4, 5), 3, (7, 8), sampling, 11, 2, True, (1, 2, 3, 4, 5), rules, range(3, 4))
    told = without_results(Batch([row, row], 1))
    assert told.num_prefills == 1
    assert told.rows[1] == BatchRow("", [4, 5], 3, [7, 8], SamplingParams(), 11, 2, samples=False)
    assert not told.rows[0].reports
