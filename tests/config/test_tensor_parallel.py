"""Which numbers of devices the heads of a model can be split over; decided before anything is loaded."""

import pytest

from sglk.config.check import runtime_problems
from sglk.config.compose import compose
from sglk.config.schema import ModelConfig, RuntimeConfig

CPU = compose("serve", ["chip=cpu"]).config.chip
TRIED = (1, 2, 3, 4, 8)


def problems(heads: int, kv_heads: int, tp_size: int) -> list[str]:
    model = ModelConfig(name="tiny", num_attention_heads=heads, num_key_value_heads=kv_heads)
    return list(runtime_problems(RuntimeConfig(tp_size=tp_size), CPU, model))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "legal"),
    [
        pytest.param(4, 2, (1, 2, 4), id="split, and copied beyond two"),
        pytest.param(4, 1, (1, 2, 4), id="copied"),
        pytest.param(6, 3, (1, 3, 6), id="neither split nor copied by two"),
    ],
)
def test_kv_heads_are_split_or_copied(heads: int, kv_heads: int, legal: tuple[int, ...]) -> None:
    for tp_size in TRIED:
        found = problems(heads, kv_heads, tp_size)
        if tp_size in legal:
            assert found == []
            continue
        [problem] = found
        for number in (f"tp_size={tp_size}", f"{heads} attention heads", f"{kv_heads} key-value heads"):
            assert number in problem
        assert problem.endswith(f"allowed: {', '.join(map(str, legal))}")


@pytest.mark.parametrize("tp_size", TRIED)
def test_kv_heads_that_do_not_divide_the_heads_are_refused_for_any_size(tp_size: int) -> None:
    [problem] = problems(6, 4, tp_size)
    assert problem == "model 'tiny' has 6 attention heads, which its 4 key-value heads do not divide"


def test_a_model_whose_numbers_are_in_its_files_is_not_judged_here() -> None:
    assert list(runtime_problems(RuntimeConfig(tp_size=3), CPU, ModelConfig(name="local"))) == []
