"""Ranges that settings are held to: each function yields the problem of one value, if there is one."""

import math
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from sglk.config.secrets import masked
from sglk.errors import nearest

MIN_MEMORY_GIB, MAX_MEMORY_GIB = 2**-20, 2**20
"""Main memory of the largest machines is far below the last, and bytes of it are exact in a float."""


def at_least(path: str, value: int | None, least: int, note: str = "") -> Iterator[str]:
    """Hold `value`, if there is one, to `least` and more; `note` says why."""
    if value is not None and value < least:
        yield f"{path}={value} is too small; it is at least {least}{note}"


def positive(path: str, value: float | None) -> Iterator[str]:
    """Hold `value`, if there is one, to finite numbers above 0."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        yield f"{path}={value:g} is not a positive number"


def memory(path: str, gib: float | None) -> Iterator[str]:
    """Hold memory, if it is given, to what is from MIN_MEMORY_GIB to MAX_MEMORY_GIB."""
    yield from positive(path, gib)
    if gib is not None and 0 < gib < MIN_MEMORY_GIB:
        yield f"{path}={gib:g} is less than any device has; it is in GiB, and at least {MIN_MEMORY_GIB:g}"
    if gib is not None and MAX_MEMORY_GIB < gib < math.inf:
        yield f"{path}={gib:g} is more than any device has, {MAX_MEMORY_GIB} at most; it is in GiB"


def one_of(path: str, value: str, allowed: Sequence[str], where: str = "") -> Iterator[str]:
    """Hold `value` to the words `allowed`, and say the nearest of them."""
    if value not in allowed:
        ending = nearest(value, allowed) or ";"
        yield f"{path}={value} is not allowed{where}{ending} allowed: {listed(allowed)}"


def address(path: str, url: str) -> Iterator[str]:
    """Hold `url` to HTTP addresses with a host."""
    if not url.startswith(("http://", "https://")):
        yield f"{path}={url!r} does not begin with http:// or https://"
        return
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # a port that is no number, a bracket that does not close
        good = False
    if not good:
        yield f"{path}={masked(url)!r} is not an address such as http://127.0.0.1:8000"
    elif parts.query or parts.fragment:
        yield f"{path}={masked(url)!r} has a query or a fragment, to which no route can be added; leave it out"
    elif parts.username is not None or parts.password is not None:
        yield f"{path}={masked(url)!r} carries a name or a password, which logs would show; leave it out and give a key"


def header_value(path: str, key: str | None) -> Iterator[str]:
    """Hold `key` to what an HTTP header can carry."""
    if key is not None and not (key.isascii() and key.isprintable()):
        yield f"{path} has signs that no HTTP header can carry; a key is of printable ASCII"


def hint(word: str, allowed: Sequence[str]) -> str:
    """Return the end of a message about an unknown `word`: the nearest of `allowed`, or all of them."""
    return nearest(word, allowed) or f"; allowed: {listed(allowed)}"


def listed(values: Iterable[object]) -> str:
    """Return `values` as a list in words."""
    return ", ".join(str(value) for value in values)
