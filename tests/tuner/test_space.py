import pytest
from sglk_tuner.space import apply, point_key

from sglk.errors import ConfigError
from tests.tuner.studies import CHUNK, MEMORY, PAGE, POLICY, WINDOW, config_of, space_of

DTYPE = "runtime.dtype"


def test_duplicates_go_with_a_notice_whatever_their_spelling() -> None:
    space = space_of({WINDOW: [8, 4, 8], MEMORY: [0.5, 0.50, 1, 1.0]})
    assert space.candidates == {WINDOW: (4, 8), MEMORY: (0.5, 1.0)}
    assert len(space.points) == 4
    assert [notice.partition(" lists ")[2] for notice in space.notices] == [
        "8 more than once; it is measured once",
        "0.5 more than once; it is measured once",
        "1.0 more than once; it is measured once",
    ]


def test_numbers_ascend_and_names_keep_their_order() -> None:
    space = space_of({CHUNK: [2048, 512], POLICY: ["lpm", "fcfs"]})
    assert space.candidates == {CHUNK: (512, 2048), POLICY: ("lpm", "fcfs")}


def test_the_hash_knows_candidates_and_not_their_order() -> None:
    written = space_of({CHUNK: [512, 2048], WINDOW: [8]})
    assert written.hash == space_of({WINDOW: [8, 8], CHUNK: [2048, 512]}).hash
    assert written.hash != space_of({CHUNK: [512, 2048], WINDOW: [16]}).hash


def test_impossible_combinations_are_found_without_an_engine() -> None:
    space = space_of({CHUNK: [48, 128], PAGE: [16, 32]})
    assert {point_key(point) for point in space.points} == {
        point_key({CHUNK: chunk, PAGE: page}) for chunk, page in ((48, 16), (128, 16), (128, 32))
    }
    (impossible,) = space.impossible
    assert impossible.params == {CHUNK: 48, PAGE: 32}
    assert "not a multiple" in impossible.reason
    assert any("left out 1 impossible combination:" in notice for notice in space.notices)


def test_a_space_without_a_possible_point_is_refused() -> None:
    with pytest.raises(ConfigError, match="no possible combination"):
        space_of({CHUNK: [48], PAGE: [32]})


def test_a_space_too_large_to_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 20000"):
        space_of({CHUNK: list(range(16, 16 * 200, 16)), WINDOW: list(range(1, 200))})


def test_keys_that_restart_the_engine_vary_slowest() -> None:
    space = space_of({WINDOW: [4, 8], DTYPE: ["fp32", "bf16"]})
    dtypes = [point[DTYPE] for point in space.points]
    assert dtypes == ["fp32", "fp32", "bf16", "bf16"]


def test_apply_leaves_the_original_alone() -> None:
    config = config_of({WINDOW: [4]})
    assert apply(config, {WINDOW: 4}).runtime.max_running_requests == 4
    assert config.runtime.max_running_requests == 32
