"""Where the shipped data lies: beside the package in a wheel, one level up in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _find(name: str) -> Path:
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise FileNotFoundError(f"{name!r} is neither in {_PACKAGE} nor in {_PACKAGE.parent}; reinstall sglk")


def conf_dir() -> Path:
    """Return the Hydra configuration root that ships with sglk."""
    return _find("conf")


def profiles_dir() -> Path:
    """Return the folder of the tuned profiles that ship with sglk."""
    return _find("profiles")
