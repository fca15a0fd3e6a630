"""Time to the first token of the second of two prompts of 2,000 tokens that begin with the same 1,900.

The engine is real, the model smollm2 on the processor; the time is what the process computes where it has one thread
(`OMP_NUM_THREADS=1`), else the time that passes.
"""

import time

import torch

from benchmarks.result import Row, main
from sglk.engine.messages import SamplingParams
from sglk.llm import LLM

PROMPT = 2000
SHARED = 1900
BAR = 0.12


def measure(quick: bool) -> list[Row]:
    """Ask for one token of pairs of prompts, each pair with a beginning of its own; the best pair counts."""
    llm = LLM("smollm2", overrides=["profiles=none"], dtype="fp32", context_length=4096)
    try:
        pairs = [_pair(llm, number) for number in range(1 if quick else 5)]
    finally:
        llm.close()
    first_s, second_s = (min(times) for times in zip(*pairs, strict=True))
    return [
        Row(f"first prompt of {PROMPT} tokens", first_s, "s"),
        Row(f"second, {SHARED} tokens in common", second_s, "s", f"{BAR:.0%} of the first, at most", BAR * first_s),
    ]


def _pair(llm: LLM, number: int) -> tuple[float, float]:
    llm.engine.flush_cache()
    begin = [100 + (31 * number + 7 * place) % 40_000 for place in range(SHARED)]
    ends = [[50 + end + place for place in range(PROMPT - SHARED)] for end in (0, 20_000)]
    return _first_token_s(llm, begin + ends[0]), _first_token_s(llm, begin + ends[1])


def _first_token_s(llm: LLM, prompt: list[int]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    llm.generate([prompt], SamplingParams(temperature=0.0, max_new_tokens=1))
    return clock() - start


if __name__ == "__main__":
    raise SystemExit(main("prefix_cache", measure, ("torch",)))
