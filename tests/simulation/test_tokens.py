import pytest

from sglk.simulation.tokens import MadeUpTokens

STRIDE = 7919


@pytest.mark.parametrize("vocab_size", [1, 7, 320, 2 * STRIDE, 50_000])
@pytest.mark.parametrize("seed", [0, 3, 2**62 + 11])
def test_tokens_taken_at_once_are_those_taken_one_by_one(vocab_size: int, seed: int) -> None:
    tokens = MadeUpTokens(vocab_size)
    answer = [tokens.one(seed, place) for place in range(1000)]

    assert tokens.some(seed, 0, 1000).tolist() == answer
    assert tokens.some(seed, 900, 60).tolist() == answer[900:960]
    assert tokens.some(seed, 5, 0).tolist() == []
    assert all(0 <= token < vocab_size for token in answer)
    assert len(set(answer)) == min(vocab_size, 1000)
