from sglk.simulation.times import StepTimes, TokenTimes


def test_an_answer_has_the_gaps_between_its_tokens() -> None:
    steps = StepTimes()
    for end_s in (1.0, 1.5, 1.75, 2.5, 3.0):
        steps.add(end_s)
    times = TokenTimes()

    times.add(1.2)
    times.add_steps(steps, 1, 3)
    # Put back, and computed again: its next token comes with the end of its prompt.
    times.add(2.0)
    times.add_steps(steps, 3, 3)
    times.add_steps(steps, 3, 5)

    assert (times.count, times.first_s, times.last_s) == (6, 1.2, 3.0)
    assert times.gaps_s == [0.3, 0.25, 0.25, 0.5, 0.5]
