"""Functions of the vendor's op libraries, found when a backend starts and checked before any of them is called.

Their signatures are not published. What is written down here as a demand is how public callers call them; a library
whose function is called otherwise, or is not there, loses the op to the reference, with the reason.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch

from sglk.backends.constraints import Constraint
from sglk.backends.finding import Finding, ok, warn
from sglk.backends.ops import Op, OpRegistry

OPS = "kunlun_ops"
GATE_OPS = "xspeedgate_ops"
"""Registers its functions as torch ops when it is imported."""


class Unfit(Exception):
    """A function is not there, or is not called as sglk would call it; the words say which."""


@dataclass(frozen=True)
class Demand:
    """A function, and the arguments that it is called with."""

    library: str
    function: str
    keywords: tuple[str, ...] = ()
    """`out|output` = called `out` here, and whichever of the two the library knows."""
    positional: int = 0
    """Arguments before the keywords, whose names callers do not use."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Values handed to parameters of some versions, where they are there."""

    def resolve(self) -> Callable[..., Any]:
        """Return what takes the arguments under our names; raises Unfit."""
        function = _find(self.library, self.function)
        known = _parameters(function)
        if known is None:
            return partial(function, **self.optional)
        spelled = {names[0]: _spelling(self, names, known) for names in (word.split("|") for word in self.keywords)}
        extra = {name: value for name, value in self.optional.items() if name in known}
        self._check_rest(known, {*spelled.values(), *extra})
        return _Renamed(function, spelled, extra)

    def _check_rest(self, known: Mapping[str, bool], given: set[str]) -> None:
        """Raise Unfit where the function wants arguments that are not given, or takes fewer."""
        rest = [name for name in known if name not in given and not name.startswith("*")]
        if len(rest) < self.positional:
            raise Unfit(f"{self} takes {len(known)} arguments, {self.positional + len(given)} were to be given")
        if unknown := [name for name in rest[self.positional :] if known[name]]:
            raise Unfit(f"{self} wants {', '.join(unknown)}, of which sglk does not know what it means")

    def __str__(self) -> str:
        return f"{self.library}.{self.function}"


@dataclass(frozen=True)
class Adapter:
    """How one op is done with the vendor's functions."""

    op: Op[Any, Any]
    needs: tuple[Demand, ...]
    build: Callable[..., Callable[..., Any]]
    """Makes the op's implementation of the functions, in the order of `needs`."""
    constraints: tuple[Constraint, ...] = ()

    def offer(self, ops: OpRegistry, limits: Mapping[str, Sequence[Constraint]]) -> None:
        """Register the op under the library's name; where a function is unfit, as an offer that never holds."""
        provider = self.needs[0].library
        try:
            implementation = self.build(*(demand.resolve() for demand in self.needs))
        except Unfit as why:
            ops.register(self.op, provider, self.op.reference, Constraint(str(why), lambda traits: False))
        else:
            ops.register(self.op, provider, implementation, *self.constraints, *limits.get(self.op.name, ()))

    def finding(self) -> Finding:
        """Return whether the installed libraries can do the op, for `sglk doctor`."""
        check = f"op {self.op.name}"
        try:
            for demand in self.needs:
                demand.resolve()
        except Unfit as why:
            return warn(check, str(why), "install the library version that fits, or live with the slower reference op")
        return ok(check, f"done by {', '.join(dict.fromkeys(map(str, self.needs)))}")


class _Renamed:
    """A function under our names for its keywords."""

    def __init__(self, function: Callable[..., Any], spelled: Mapping[str, str], extra: Mapping[str, Any]) -> None:
        self._function = function
        self._spelled = spelled
        self._extra = extra

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        named = {self._spelled[name]: value for name, value in keywords.items()}
        return self._function(*args, **named, **self._extra)


def _find(library: str, function: str) -> Callable[..., Any]:
    try:
        module = import_module(library)
    # A native library may raise anything while it loads.
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise Unfit(f"{library} does not load ({words})") from error
    found = getattr(module, function, None) or _torch_op(library, function)
    if found is None:
        raise Unfit(f"{library}.{function} is not in the installed library")
    return found


def _torch_op(library: str, function: str) -> Callable[..., Any] | None:
    packet = getattr(getattr(torch.ops, library), function, None)
    return packet.default if packet is not None else None


def _parameters(function: Callable[..., Any]) -> dict[str, bool] | None:
    """Return the parameters and whether they must be given; None where the function does not tell.

    `*` and `**` stand for any further ones.
    """
    if isinstance(function, torch._ops.OpOverload):
        return {each.name: not each.has_default_value() for each in function._schema.arguments}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    known = {}
    for name, each in signature.parameters.items():
        if each.kind is each.VAR_POSITIONAL:
            return None
        stars = "**" if each.kind is each.VAR_KEYWORD else ""
        known[stars or name] = each.default is each.empty and not stars
    return known


def _spelling(demand: Demand, names: Iterable[str], known: Mapping[str, bool]) -> str:
    names = list(names)
    for name in names:
        if name in known:
            return name
    if "**" in known:
        return names[0]
    raise Unfit(f"{demand} has no parameter {' or '.join(names)}; it takes {', '.join(known)}")
