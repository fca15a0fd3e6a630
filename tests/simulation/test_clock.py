"""The virtual clock: what is due comes in the order of time, and of two things at a moment the one asked for first."""

import random
from functools import partial

from sglk.simulation.clock import VirtualClock


def test_things_come_in_the_order_of_time_and_then_of_asking() -> None:
    clock, draw = VirtualClock(), random.Random(5)
    asked, seen = list[tuple[float, int]](), list[tuple[float, int]]()

    def ask(time_s: float) -> None:
        number = len(asked)
        asked.append((time_s, number))
        clock.at(time_s, partial(come, time_s, number))

    def come(time_s: float, number: int) -> None:
        assert clock() == time_s
        seen.append((time_s, number))
        for _ in range(draw.choice((0, 1, 2)) if len(asked) < 500 else 0):
            # Some at once, some soon, and some after a limit that is the same for all.
            ask(time_s + draw.choice((0.0, float(draw.randrange(4)), 20.0)))

    for _ in range(50):
        ask(float(draw.randrange(10)))
    assert clock.next_s == min(asked)[0]
    clock.run()
    assert len(seen) == len(asked) > 300
    assert seen == sorted(asked)
    assert clock.next_s == float("inf")
