"""Read JSON into dataclasses, strictly: a damaged file is named by the place that is wrong, never half accepted."""

import json
import math
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_LARGEST = 2**63 - 1


def parse(text: str) -> Any:
    """Return the value of a JSON text whose figures are all finite and of 64 bits; raises ValueError for any other."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float, parse_int=_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def structure(kind: type[T], value: object, where: str = "") -> T:
    """Return `value` (parsed JSON) as an instance of the dataclass `kind`.

    Fields that `kind` does not know are ignored, so that older readers accept additions. Raises ValueError such as
    `summary.ttft_s_mean: expected a number or null, got 'fast'`.
    """
    built: T = _build(kind, value, where)
    return built


def _build(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _build_optional(arguments, value, where)
    if origin is Literal:
        _require(value in arguments, f"one of {', '.join(map(str, arguments))}", value, where)
        return value
    if origin is list:
        _require(isinstance(value, list), "a list", value, where)
        return [_build(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        _require(isinstance(value, dict), "an object", value, where)
        return {key: _build(arguments[1], item, _join(where, key)) for key, item in value.items()}
    return _build_scalar(kind, value, where)


def _build_dataclass(kind: type, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), "an object", value, where)
    hints = get_type_hints(kind)
    given = {}
    for item in fields(kind):
        if item.name in value:
            given[item.name] = _build(hints[item.name], value[item.name], _join(where, item.name))
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{_join(where, item.name)}: missing")
    return kind(**given)


def _build_optional(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    (inner,) = (argument for argument in arguments if argument is not types.NoneType)
    return None if value is None else _build(inner, value, where)


def _build_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float:
        _require(isinstance(value, int | float) and not isinstance(value, bool), "a number", value, where)
        return float(value)
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    _require(right, {int: "a whole number", str: "a string", bool: "true or false"}[kind], value, where)
    return value


def _float(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def _int(digits: str) -> int:
    # The length first: Python refuses to read very long numbers at all.
    value = int(digits) if len(digits) <= 20 else _LARGEST + 1
    return value if abs(value) <= _LARGEST else _refuse(digits)


def _refuse(figure: str) -> NoReturn:
    raise ValueError(
        f"{figure if len(figure) <= 40 else 'a number of ' + str(len(figure)) + ' digits'} is not a figure"
    )


def _require(holds: bool, expected: str, value: object, where: str) -> None:
    if not holds:
        shown = repr(value)
        raise ValueError(f"{where or 'document'}: expected {expected}, got {shown if len(shown) <= 40 else '...'}")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
