"""Whether a plugin's table of capabilities can be meant: else users read of settings that they never wrote."""

from collections.abc import Set
from dataclasses import fields

from sglk.backends.base import Capabilities
from sglk.backends.dtypes import TORCH_DTYPES
from sglk.config.quantization import NAMES

_COMPUTE_DTYPES = ("fp32", "bf16", "fp16")

_KNOWN: dict[str, tuple[str, ...]] = {
    "dtypes": _COMPUTE_DTYPES,
    "kv_cache_dtypes": tuple(TORCH_DTYPES),
    "quantization": tuple(dict.fromkeys(name.scheme for name in NAMES.values() if name.scheme)),
}
"""What the sets of names may hold."""


def table_flaw(table: Capabilities) -> str | None:
    """Return the first thing in `table` that fits neither sglk nor the rest of it, or None."""
    for part, known in _KNOWN.items():
        names = getattr(table, part)
        if not isinstance(names, Set):
            return f"capabilities.{part} is {names!r}, not a frozenset of names"
        if unknown := sorted(map(str, names - set(known))):
            return f"capabilities.{part} has {unknown[0]!r}, which is none of {', '.join(known)}"
    for flag in (part.name for part in fields(table) if part.default is False):
        if not isinstance(value := getattr(table, flag), bool):
            return f"capabilities.{flag} is {value!r}, not True or False"
    sizes = table.page_sizes
    if not isinstance(sizes, tuple | list) or not all(type(size) is int and size > 0 for size in sizes):
        return f"capabilities.page_sizes is {sizes!r}, not a tuple of whole numbers above 0"
    group = table.int8_group_size
    if type(group) is not int or (group < 1 and group != -1):
        return f"capabilities.int8_group_size is {group!r}, not a whole number above 0, nor -1 for all inputs"
    if not isinstance(table.collectives, str | None):
        return f"capabilities.collectives is {table.collectives!r}, not the name of a library, nor None"
    if not isinstance(table.default_dtype, str) or table.default_dtype not in table.dtypes:
        listed = ", ".join(sorted(table.dtypes)) or "none"
        return f"capabilities.default_dtype is {table.default_dtype!r}, which is not among its dtypes: {listed}"
    if lacking := sorted(table.dtypes - table.kv_cache_dtypes):
        return f"capabilities.kv_cache_dtypes lacks {lacking[0]!r}, which kv_cache_dtype=auto means beside that dtype"
    return None
