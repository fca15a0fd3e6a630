"""The first request of an engine, made by the engine's own side before any client's."""

import threading

from sglk.engine.engine import Engine
from sglk.engine.messages import Finish, GenerateRequest, Output, SamplingParams
from sglk.errors import RunError

WARM_UP_TIMEOUT_S = 600.0
"""A first step may compile kernels."""


def warm_up(engine: Engine) -> None:
    """Run every op that the model's requests can need, once; raises RunError with what the engine could not do.

    The second token is decoded, and chance, penalties and logprobs have ops of their own: a vendor's library that does
    not fit, and is loaded when its op is first called, shows before the port opens. Where quarantine switches an
    implementation off, what takes its place is tried.
    """
    switched_off = 0
    while (end := _first_answer(engine)).reason != "length":
        before, switched_off = switched_off, len(engine.op_report().quarantines)
        if switched_off == before:
            raise RunError(f"the engine cannot generate: {end.message or end.reason}")
    # Or the first prompt of a client that begins like it would have been cached before it was ever sent.
    engine.flush_cache()


def _first_answer(engine: Engine) -> Finish:
    finished = threading.Event()
    ends: list[Finish] = []

    def on_output(output: Output) -> None:
        if output.finish is not None:
            ends.append(output.finish)
            finished.set()

    sampling = SamplingParams(
        max_new_tokens=min(2, engine.context_length - 1),
        top_k=2,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        logprobs=1,
        ignore_eos=True,
    )
    engine.submit(GenerateRequest("warm-up", (0,), sampling), on_output)
    if not finished.wait(WARM_UP_TIMEOUT_S):
        raise RunError(f"the engine made no token within {WARM_UP_TIMEOUT_S:g} s; look for a stuck device")
    return ends[0]
