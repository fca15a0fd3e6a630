"""Whose function an implementation is: module, and the distribution that brings it."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import packages_distributions, version
from typing import Any


def function_name(function: Callable[..., Any]) -> str:
    """Return `module.name` of a function, or of the type of what is called like one."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def distribution_of(function: Callable[..., Any]) -> str | None:
    """Return the name and version of the distribution that a function is from, None where none says it has it."""
    module = getattr(function, "__module__", None) or type(function).__module__
    found = _distributions().get(module.partition(".")[0])
    return f"{found[0]} {version(found[0])}" if found else None


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())
