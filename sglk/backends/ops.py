"""The op seam: which implementation of an op runs for a shape class, from whom, and why."""

import importlib
import logging
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, get_args

from sglk.backends.constraints import Constraint, Trait, Traits
from sglk.errors import BackendError, CapacityError, ConfigError, SglkError, is_out_of_memory, nearest

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

Fallback = Literal["allow", "warn", "forbid"]

REFERENCE = "reference"
"""Provider of the plain torch implementations."""

_OPS: dict[str, "Op[Any, Any]"] = {}

_RESULTS = "sglk.backends.op_results"
"""Knows the form of what each op returns; needs all ops, and torch: so not before an op is called."""


@dataclass(frozen=True)
class Op(Generic[P, R]):
    """One operation that a chip may implement: its name, and the reference that defines its signature and result."""

    name: str
    reference: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the reference, as an implementation may for what it leaves to it."""
        return self.reference(*args, **kwargs)


def define_op(reference: Callable[P, R]) -> Op[P, R]:
    """Declare the decorated function as the reference of a new op of the same name."""
    op = Op(reference.__name__, reference)
    assert op.name not in _OPS, f"op {op.name} is defined twice"
    _OPS[op.name] = op
    return op


def op_named(name: str) -> Op[Any, Any]:
    """Return the op of that name, which is one of `known_ops`."""
    return _OPS[name]


def known_ops() -> list[str]:
    """Return the names of all ops, sorted."""
    return sorted(_OPS)


@dataclass(frozen=True)
class Packing:
    """How an implementation lays out a weight for itself, once when it is loaded.

    `unpack` gives back what `pack` was given, so that another implementation can take over. What `pack` returns has
    `nbytes`, the memory that it holds.
    """

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    positions: tuple[int, ...] | None = None
    """Which arguments of the op are packed; None = those that are quantised matrices."""
    pack_few_bits: Callable[[Any], Any] | None = None
    """Takes a `FewBits` in place of the fp32 matrix that it stands for; None = it must be restored first."""


def _named(packing: Packing, provider: str) -> Packing:
    """Return `packing` with errors that name whose it is."""

    def tell(what: str, change: Callable[[Any], Any], weight: Any) -> Any:
        try:
            return change(weight)
        except SglkError:
            raise
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            if is_out_of_memory(error):
                raise CapacityError(
                    f"{provider!r} has too little memory to {what} a weight: {told}; free some, or choose a smaller"
                    " model or runtime.quantization"
                ) from error
            raise BackendError(
                f"{provider!r} cannot {what} a weight: {told}; correct the plugin, or take its ops out with"
                " backend.deny"
            ) from error

    few_bits = packing.pack_few_bits
    return replace(
        packing,
        pack=partial(tell, "pack", packing.pack),
        unpack=partial(tell, "unpack", packing.unpack),
        pack_few_bits=None if few_bits is None else partial(tell, "pack", few_bits),
    )


@dataclass(frozen=True)
class Implementation(Generic[P, R]):
    """One provider's function for an op, with the demands that it makes."""

    op: str
    provider: str
    function: Callable[P, R]
    constraints: tuple[Constraint, ...] = ()
    packing: Packing | None = None

    def unmet(self, traits: Traits) -> str | None:
        """Return the first demand that `traits` does not meet, or None; raises BackendError for one that cannot say."""
        return next((demand.text for demand in self.constraints if not self._holds(demand, traits)), None)

    def _holds(self, demand: Constraint, traits: Traits) -> bool:
        try:
            return demand.holds(traits)
        # A vendor's test may raise anything, and nobody may take that for a shape which does not fit.
        except Exception as error:
            known = ", ".join(f"{name}={value}" for name, value in traits.items())
            raise BackendError(
                f"op {self.op!r} of {self.provider!r}: its demand {demand.text!r} cannot be checked"
                f" ({type(error).__name__}: {error}) for a shape class of {known}; correct the plugin, or take it out"
                f" with backend.deny.{self.op}"
            ) from error

    def flaw(self) -> str | None:
        """Return what makes it no implementation of an op, or None."""
        if self.op not in _OPS:
            return f"there is no op {self.op!r}{nearest(self.op, _OPS)}"
        if not self.provider or self.provider == REFERENCE:
            return f"provider {self.provider!r} is no name for one; {REFERENCE!r} is what sglk itself has for every op"
        if not callable(self.function):
            return f"its implementation is {self.function!r}, not a function"
        wrong = next((demand for demand in self.constraints if not isinstance(demand, Constraint)), None)
        if wrong is not None:
            return f"its demand {wrong!r} is no Constraint; write one_of, multiple_of, at_most or parse_constraint"
        return None


@dataclass(frozen=True)
class Choice:
    """Which provider runs an op for one shape class, and why."""

    op: str
    traits: tuple[tuple[str, Trait], ...]
    provider: str
    reason: str
    fallback: bool
    """Whether the reference stands in for the chip's own implementation."""


@dataclass(frozen=True)
class Denial:
    """An implementation that is not to be used on this chip, though its library has it, and why."""

    op: str
    provider: str | None
    """None = nobody's: the reference runs."""
    reason: str

    def covers(self, offer: Implementation[Any, Any]) -> bool:
        """Return whether `offer` is what must not be used."""
        return self.op == offer.op and self.provider in (None, offer.provider)


@dataclass(frozen=True)
class Quarantine:
    """An implementation that was switched off while it ran, and why."""

    op: str
    provider: str
    reason: str


class BoundOp(Generic[P, R]):
    """A callable handle to the chosen implementation; layers keep it, the registry may point it elsewhere."""

    __slots__ = ("_run", "choice", "function", "op", "packing")

    def __init__(self, op: Op[P, R], function: Callable[P, R], choice: Choice, packing: Packing | None = None) -> None:
        self.op = op
        self.function = function
        self.choice = choice
        self.packing = packing
        """What must be done to the weight before a call; None = it is taken as it is."""
        self._run = self._unseen()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the chosen implementation."""
        return self._run(*args, **kwargs)

    def switch(self, function: Callable[P, R], choice: Choice, packing: Packing | None = None) -> None:
        """Run `function` from the next call on, for every layer that holds this handle."""
        self.function = function
        self.choice = choice
        self.packing = packing
        self._run = self._unseen()

    def _unseen(self) -> Callable[P, R]:
        """Return what runs at the first call; of packed weights nobody else knows what a result is like."""
        return self.function if self.choice.fallback or self.packing is not None else self._first

    def _first(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the implementation and look at the form of what it returns: once, so that later calls pay nothing.

        Else a wrong result fails in whatever op takes it next, which would get the blame.
        """
        result = self.function(*args, **kwargs)
        flaw = importlib.import_module(_RESULTS).result_flaw(self.op, result, args, kwargs)
        if flaw is not None:
            raise BackendError(f"{flaw}; `sglk ops test` shows it again, backend.deny.{self.op.name} does without it")
        self._run = self.function
        return result

    def observe(self, observer: "Observer") -> Callable[[], None]:
        """Hand calls to `observer` instead of the implementation, until what is returned is called."""
        before, watched = self._run, partial(observer, self)
        self._run = watched

        def end() -> None:
            # Whoever was switched to another implementation meanwhile runs that.
            if self._run is watched:
                self._run = before

        return end


Observer: TypeAlias = Callable[..., Any]
"""Takes a BoundOp and the arguments of a call, and returns what the call comes to."""


class OpRegistry:
    """The implementations that one backend offers, and the choices made among them.

    Implementations registered later are preferred. Where none fits, the reference runs, with one log line per shape
    class: at level info under `allow`, as a warning under `warn`; under `forbid` the selection is an error.
    """

    def __init__(self, fallback: Fallback = "warn", deny: Sequence[Denial] = ()) -> None:
        if fallback not in get_args(Fallback):
            raise ConfigError(f"backend.fallback={fallback!r}; choose one of {', '.join(get_args(Fallback))}")
        self.fallback = fallback
        self.deny = tuple(deny)
        self._implementations: dict[str, list[Implementation[Any, Any]]] = {}
        self._bound: dict[tuple[str, tuple[tuple[str, Trait], ...]], BoundOp[Any, Any]] = {}
        self._quarantined: dict[tuple[str, str], str] = {}
        self._packings: dict[tuple[str, Packing], Packing] = {}

    def register(
        self,
        op: Op[P, R],
        provider: str,
        function: Callable[P, R],
        *constraints: Constraint,
        packing: Packing | None = None,
    ) -> None:
        """Offer `function` of `provider` for `op`; shape classes bound before keep their choice.

        Raises BackendError for what is no implementation of an op.
        """
        if packing is not None:
            # One for all ops of a provider: a weight that several of them take is packed once.
            packing = self._packings.setdefault((provider, packing), _named(packing, provider))
        name = op.name if isinstance(op, Op) else str(op)
        offer = Implementation(name, provider, function, constraints, packing)
        if (flaw := offer.flaw()) is not None:
            raise BackendError(f"op {name!r} of {provider!r} cannot be registered: {flaw}")
        self._implementations.setdefault(name, []).insert(0, offer)

    def select(self, op: Op[P, R], **traits: Trait) -> BoundOp[P, R]:
        """Return the handle that runs `op` for this shape class; the same class always gets the same handle.

        Raises BackendError under `fallback=forbid` when no implementation of the chip fits.
        """
        key = (op.name, tuple(sorted(traits.items())))
        if key not in self._bound:
            self._bound[key] = BoundOp(op, *self._choose(op, key[1]))
        return self._bound[key]

    def reference(self, op: Op[P, R]) -> Callable[P, R]:
        """Return what runs where nothing of the chip fits; a device that computes nothing has its own."""
        return op.reference

    def choices(self) -> list[Choice]:
        """Return every choice made so far, in order of op and shape class; may be called from any thread."""
        # One step of the interpreter copies the handles, to which the engine's thread may add at any time.
        choices = [bound.choice for bound in list(self._bound.values())]
        return sorted(choices, key=lambda choice: (choice.op, repr(choice.traits)))

    def providers(self, names: Container[str]) -> set[str]:
        """Return whose implementations were chosen for these ops, for any shape class."""
        return {bound.choice.provider for bound in list(self._bound.values()) if bound.choice.op in names}

    def quarantines(self) -> list[Quarantine]:
        """Return what was switched off so far, in the order in which it was; may be called from any thread."""
        return [Quarantine(op, provider, reason) for (op, provider), reason in list(self._quarantined.items())]

    def implementations(self, op: Op[P, R]) -> tuple[Implementation[P, R], ...]:
        """Return what is offered for `op`, the preferred one first, whether or not it may be used."""
        return tuple(self._implementations.get(op.name, ()))

    def refusal(self, offer: Implementation[Any, Any], traits: Traits) -> str | None:
        """Return why `offer` is not used for a shape class (denied, quarantined, an unmet demand), or None."""
        return self._banned(offer) or offer.unmet(traits)

    def quarantine(self, op: Op[Any, Any], provider: str, reason: str) -> int:
        """Use the implementation of `provider` no longer; returns how many handles were switched to another."""
        self._quarantined[op.name, provider] = reason
        affected = [
            bound for (name, _), bound in self._bound.items() if (name, bound.choice.provider) == (op.name, provider)
        ]
        for bound in affected:
            bound.switch(*self._choose(op, bound.choice.traits))
        return len(affected)

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Hand every call of an op within the block to `observer`; calls outside cost nothing more for it."""
        ends = [bound.observe(observer) for bound in list(self._bound.values())]
        try:
            yield
        finally:
            for end in ends:
                end()

    def _choose(
        self, op: Op[P, R], traits: tuple[tuple[str, Trait], ...]
    ) -> tuple[Callable[P, R], Choice, Packing | None]:
        refusals: list[str] = []
        for offer in self._implementations.get(op.name, []):
            refusal = self.refusal(offer, dict(traits))
            if refusal is None:
                reason = "; ".join(refusals) or "first choice of the backend"
                choice = Choice(op.name, traits, offer.provider, reason, fallback=False)
                return offer.function, choice, offer.packing
            refusals.append(f"{offer.provider}: {refusal}")
        reason = "; ".join(refusals) or "no implementation by the backend"
        self._report_fallback(op.name, traits, reason)
        return self.reference(op), Choice(op.name, traits, REFERENCE, reason, fallback=True), None

    def _banned(self, offer: Implementation[Any, Any]) -> str | None:
        denied = (f"denied, {denial.reason}" for denial in self.deny if denial.covers(offer))
        return self._quarantined.get((offer.op, offer.provider)) or next(denied, None)

    def _report_fallback(self, op: str, traits: tuple[tuple[str, Trait], ...], reason: str) -> None:
        shape = ", ".join(f"{name}={value}" for name, value in traits) or "any shape"
        if self.fallback == "forbid":
            raise BackendError(
                f"op {op!r} for {shape} has no implementation on this backend ({reason}); "
                "set backend.fallback=warn to run the reference instead"
            )
        level = logging.WARNING if self.fallback == "warn" else logging.INFO
        logger.log(level, "op %s for %s runs the reference (%s)", op, shape, reason)
