"""Watching the ops of a step for the first one whose result is not finite.

Letters: N lines of an op's result, one per token or per row of logits.
"""

import inspect
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sglk.backends.kv_values import read_both
from sglk.backends.ops import BoundOp, Op
from sglk.backends.quantised import QuantisedMatrix, dequantise
from sglk.backends.rows import IntArray, PagedRows
from sglk.engine.fault import Cause, Fault
from sglk.errors import BackendError

logger = logging.getLogger(__name__)

PREFILL, DECODE, STORE = "attention_prefill", "attention_decode", "store_kv"

Values = Sequence[Any]


class Tracer:
    """Observes the ops of a registry; afterwards `faults` has the first fault of each row that met one.

    No op runs twice but where a result is not finite: then the reference does too, on the same arguments.
    """

    def __init__(self, num_rows: int) -> None:
        self._all_rows = range(num_rows)
        self.faults: dict[int, Fault] = {}
        self.rows_N: IntArray = np.empty(0, np.int64)
        """Row of each line that is computed at present; whoever runs the step keeps it right."""
        self._place = 0

    def __call__(self, bound: BoundOp[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the op and look at what it came to."""
        arguments = inspect.signature(bound.op.reference).bind(*args, **kwargs).args
        given = _kept(bound.op, arguments)
        result = bound.function(*args, **kwargs)
        spoilt_N = spoilt_lines(bound.op, arguments, result)
        if spoilt_N.any():
            for row, lines in self._new_rows(bound.op.name, spoilt_N.cpu().numpy()):
                self.faults[row] = self._fault(bound, given, lines)
        self._place += 1
        return result

    def _new_rows(self, op: str, spoilt_N: npt.NDArray[np.bool_]) -> Iterator[tuple[int, list[int]]]:
        """Yield the rows without a fault so far that have spoilt lines, and those lines."""
        count = len(spoilt_N)
        rows_N = self.rows_N[:count] if op == PREFILL else self.rows_N[-count:]
        if count != len(self.rows_N) and op not in (PREFILL, DECODE):
            # Lines of another kind are anybody's.
            lines = np.flatnonzero(spoilt_N).tolist()
            yield from ((row, lines) for row in self._all_rows if row not in self.faults)
            return
        for row in set(rows_N[spoilt_N].tolist()) - self.faults.keys():
            yield row, np.flatnonzero(spoilt_N & (rows_N == row)).tolist()

    def _fault(self, bound: BoundOp[..., Any], given: Values, lines: list[int]) -> Fault:
        choice = bound.choice
        shape = ", ".join(f"{name}={value}" for name, value in choice.traits)
        return Fault(self._place, choice.op, shape, choice.provider, _cause(bound, given, lines))


def spoilt_lines(op: Op[..., Any], arguments: Values, result: Any) -> torch.Tensor:
    """Return which lines of an op's result are not finite, bool [N]."""
    if op.name == STORE:
        _, _, k_pool_SKD, v_pool_SKD, slots_T, *scales = arguments
        result = read_both(k_pool_SKD, v_pool_SKD, slots_T, scales[0] if scales else None, torch.float32)
    elif result is None:
        return _spoilt_logits(arguments[0])
    results = result if isinstance(result, tuple) else (result,)
    spoilt_N = torch.zeros(len(results[0]), dtype=torch.bool, device=results[0].device)
    for tensor in results:
        if tensor.is_floating_point():
            finite = tensor.isfinite()
            spoilt_N |= ~(finite.flatten(1).all(-1) if finite.dim() > 1 else finite)
    return spoilt_N


def _spoilt_logits(logits_BV: torch.Tensor) -> torch.Tensor:
    """Those of forbidden tokens are -inf, but never all of a row."""
    return ~logits_BV.amax(-1).isfinite()


@cache
def _parameters(op: Op[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(op.reference).parameters.values())


def _has_lines(parameter: inspect.Parameter) -> bool:
    """Return whether the argument has a line for each token or row: the letters of its name say so."""
    return parameter.name.rpartition("_")[2][0] in "TB"


def _kept(op: Op[..., Any], arguments: Values) -> list[Any]:
    """Return the arguments with copies of those that the op may overwrite."""
    return [
        argument.clone() if _has_lines(parameter) and isinstance(argument, torch.Tensor) else argument
        for parameter, argument in zip(_parameters(op), arguments, strict=False)
    ]


def _cause(bound: BoundOp[..., Any], given: Values, lines: list[int]) -> Cause:
    parameters = _parameters(bound.op)[: len(given)]
    pairs = list(zip(parameters, given, strict=True))
    if any(_is_spoilt(parameter, argument, lines) for parameter, argument in pairs if _has_lines(parameter)):
        return "input"
    if bound.op.name in (PREFILL, DECODE) and not _kv_is_finite(given, lines[0]):
        return "kv"
    try:
        plain = _unpacked(bound, pairs)
    except BackendError:
        # The reference cannot be asked; what the op was given is finite as far as anybody can tell.
        logger.exception("op %s of %s cannot be checked", bound.choice.op, bound.choice.provider)
        return "op"
    expected = bound.op.reference(*plain)
    if not spoilt_lines(bound.op, plain, expected)[lines].any():
        return "op"
    weights = [plain[index] for index, parameter in enumerate(parameters) if _is_weight(parameter)]
    return "overflow" if _all_finite(weights) else "weights"


def _is_spoilt(parameter: inspect.Parameter, argument: Any, lines: list[int]) -> bool:
    if not isinstance(argument, torch.Tensor) or not argument.is_floating_point():
        return False
    own = argument[lines]
    return bool(_spoilt_logits(own).any()) if parameter.name == "logits_BV" else not _all_finite([own])


def _is_weight(parameter: inspect.Parameter) -> bool:
    """Return whether the argument is the model's own: neither of a line, nor of the KV pool, nor a request's."""
    return parameter.name.rpartition("_")[2][0] not in "TBSNM"


def _kv_is_finite(given: Values, line: int) -> bool:
    """Return whether what the row of a query reads is finite."""
    _, k_pool_SKD, v_pool_SKD, rows, _, *scales = given
    assert isinstance(rows, PagedRows)
    row = int(np.searchsorted(rows.query_starts, line, side="right")) - 1
    read = read_both(k_pool_SKD, v_pool_SKD, rows.row_slots[row], scales[0] if scales else None, torch.float32)
    return _all_finite(read)


def _unpacked(bound: BoundOp[..., Any], pairs: Iterable[tuple[inspect.Parameter, Any]]) -> list[Any]:
    """Return the arguments with packed weights in the layout that all chips share."""
    if bound.packing is None:
        return [argument for _, argument in pairs]
    unpack, positions = bound.packing.unpack, bound.packing.positions
    return [
        unpack(argument)
        if (parameter.annotation is QuantisedMatrix if positions is None else position in positions)
        else argument
        for position, (parameter, argument) in enumerate(pairs)
    ]


def _all_finite(arguments: Iterable[Any]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in _numbers(arguments))


def _numbers(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    for argument in arguments:
        if isinstance(argument, QuantisedMatrix):
            yield dequantise(argument)
        elif isinstance(argument, torch.Tensor) and argument.is_floating_point():
            yield argument
