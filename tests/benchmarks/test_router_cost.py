from benchmarks.router_cost import picks_out_of_place


def test_every_cycle_of_picks_is_exact() -> None:
    assert picks_out_of_place() == 0
