"""Rules of a calibration."""

from collections.abc import Iterator

from sglk.config.calibrate_schema import CalibrateConfig
from sglk.config.ranges import at_least, positive


def calibration_problems(config: CalibrateConfig) -> Iterator[str]:
    """Yield what is wrong with the effort, and with a deployment that is no single replica of our own engine."""
    settings = config.calibrate
    for name, least in (("context_length", 64), ("repeats", 1)):
        yield from at_least(f"calibrate.{name}", getattr(settings, name), least)
    for name in ("time_s", "longest_step_s"):
        yield from positive(f"calibrate.{name}", getattr(settings, name))
    if not settings.folder:
        yield "calibrate.folder is empty; write a folder, such as ./calibration"
    if config.engine.name != "native":
        yield f"engine={config.engine.name} has steps of its own, which cannot be measured; leave out engine"
    if len(config.groups) > 1:
        yield f"groups has {len(config.groups)} device groups; calibrate one chip at a time, and leave out groups"
    elif config.groups and config.groups[0].url is not None:
        name = config.groups[0].name
        yield f"device group {name!r} is a server elsewhere, which cannot be calibrated; leave out groups"
