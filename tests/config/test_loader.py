"""What Hydra's own command line brings to a configuration is there without Hydra's own settings too."""

from sglk.config.compose import compose


def test_values_may_name_the_date_and_the_version_of_python() -> None:
    assert str(compose("bench", ["chip=cpu", "bench.output='runs/${now:%Y}'"]).config.bench.output).startswith("runs/2")
    assert compose("serve", ["chip=cpu", "chip.title='${python_version:major}'"]).config.chip.title == "3"
