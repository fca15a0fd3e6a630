"""A real model whose weights are not numbers for one token: who meets it fails, and nobody else notices."""

import numpy as np
import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import SamplingParams
from sglk.testing.tiny import tiny_config, tiny_weights
from tests.cache.keys import key_of
from tests.engine.receiving import TOKENIZER, gauges, submit
from tests.models.greedy import oracle, tiny_runner

CONFIG = tiny_config()
COUNT = 6
SAMPLING = {
    "greedy": SamplingParams(max_new_tokens=COUNT, temperature=0.0, ignore_eos=True),
    "drawn": SamplingParams(max_new_tokens=COUNT, temperature=1.0, seed=1, ignore_eos=True),
}
STEM = list(range(60, 100))
PROMPTS = [[*STEM, 3], [*STEM[:20], 4, 5, 6], [1, 2, 3]]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("how", ["greedy", "drawn"])
def test_poisoned_request_fails_alone_and_leaves_nothing_in_the_cache(how: str, mixed: bool) -> None:
    expected = oracle(CONFIG, PROMPTS, COUNT)
    # No prompt has it, and no answer.
    poison = min(set(range(200, 256)) - {token for answer in expected for token in answer})
    arrays = tiny_weights(CONFIG)
    arrays["model.embed_tokens.weight"][poison] = np.nan
    runtime = {"max_total_tokens": 160, "num_threads": 1, "page_size": 4, "enable_mixed_chunk": mixed}
    engine = Engine(tiny_runner(CONFIG, arrays, **runtime), TOKENIZER, RuntimeConfig(**runtime))
    engine.start()
    try:
        good = [submit(engine, f"good {index}", prompt, SAMPLING["greedy"]) for index, prompt in enumerate(PROMPTS)]
        doomed = [*STEM, poison, *range(7, 30)]
        bad = submit(engine, "bad", doomed, SAMPLING[how])
        finish = bad.wait()
        for receiver in good:
            receiver.wait()
        # What the good ones computed, and nothing that the bad one did.
        assert engine._core.cache.peek(key_of(doomed)) == len(STEM)
        again = [submit(engine, f"again {index}", prompt, SAMPLING["greedy"]) for index, prompt in enumerate(PROMPTS)]
        for receiver in again:
            receiver.wait()
        stats = engine.stats()
    finally:
        engine.shutdown()

    assert [receiver.token_ids for receiver in good] == [receiver.token_ids for receiver in again] == expected
    assert finish.reason == "error"
    assert finish.message is not None
    assert finish.message.startswith("the step failed: the model's logits are not finite")
    assert (stats.requests_finished, stats.requests_failed) == (6, 1)
    assert gauges(stats) == (0, 0, 0)
