"""The keys of a command's configuration, read off its dataclasses: which exist, of what type, and what they mean."""

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, Union

from sglk.config import schema
from sglk.config.bench_schema import BenchConfig
from sglk.config.calibrate_schema import CalibrateConfig
from sglk.config.ops_schema import OpsConfig
from sglk.config.plan_schema import PlanConfig
from sglk.config.render_schema import RenderConfig
from sglk.config.schema import ServeConfig
from sglk.config.simulate_schema import SimulateConfig
from sglk.config.tune_schema import TuneConfig

ROOTS: dict[str, type[ServeConfig]] = {
    "serve": ServeConfig,
    "bench": BenchConfig,
    "tune": TuneConfig,
    "ops": OpsConfig,
    "plan": PlanConfig,
    "render": RenderConfig,
    "calibrate": CalibrateConfig,
    "simulate": SimulateConfig,
}
"""Root dataclass per composable command."""

GROUPS: dict[str, tuple[str, ...]] = {
    "serve": ("chip", "model", "backend", "engine", "runtime", "profiles"),
    "bench": ("chip", "model", "backend", "engine", "runtime", "workload", "profiles"),
    "tune": ("chip", "model", "backend", "engine", "runtime", "workload", "objective", "search", "profiles"),
    "ops": ("chip", "model", "backend", "engine", "runtime", "profiles"),
    "plan": ("chip", "model", "backend", "engine", "runtime", "profiles"),
    "render": ("chip", "model", "backend", "engine", "runtime", "profiles"),
    "calibrate": ("chip", "model", "backend", "engine", "runtime"),
    "simulate": ("chip", "model", "backend", "engine", "runtime", "workload", "profiles"),
}
"""Configuration groups that a command composes, in the order of its defaults list."""

PASS_THROUGH = ("backend.options", "engine.extra_args")
"""Nodes that take any key."""

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Key:
    """One setting."""

    path: str
    type: Any
    """The annotation without Optional."""
    optional: bool
    """Whether null is a value."""
    doc: str = ""

    @property
    def has_fields(self) -> bool:
        """Whether its value is a mapping with the keys of a dataclass."""
        return is_dataclass(self.type)

    @property
    def is_mapping(self) -> bool:
        """Whether its value has keys, whatever they are."""
        return self.has_fields or typing.get_origin(self.type) is dict

    @property
    def wanted(self) -> str:
        """The type in words."""
        words = describe(self.type)
        return f"{words} or null" if self.optional and self.type is not Any else words


def describe(annotation: Any) -> str:
    """Return a type in words, such as `an integer`."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin = typing.get_origin(annotation)
    if origin is list:
        return f"a list ({describe(typing.get_args(annotation)[0])} each)"
    if origin is dict or is_dataclass(annotation):
        return "a mapping"
    return "any value"


def keys(root: type) -> dict[str, Key]:
    """Return every node below `root` by its dotted path, inner nodes included."""
    return _keys(root)


@cache
def _keys(root: Any) -> dict[str, Key]:
    return {key.path: key for key in _walk(root, "")}


def leaves(root: type) -> dict[str, Key]:
    """Return the keys that hold values: those without dataclass below them."""
    return {path: key for path, key in keys(root).items() if not is_dataclass(key.type)}


def lookup(root: type, path: str) -> Key | None:
    """Return what the schema says about a dotted path, entries of dictionaries included, or None."""
    known = keys(root)
    if path in known:
        return known[path]
    parent, _, name = path.rpartition(".")
    while parent:
        key = known.get(parent)
        if key is not None and typing.get_origin(key.type) is dict:
            return _entry(key, path, name)
        parent, _, head = parent.rpartition(".")
        name = f"{head}.{name}"
    return None


def _entry(key: Key, path: str, name: str) -> Key | None:
    annotation, optional = _unwrap(typing.get_args(key.type)[1])
    if is_dataclass(annotation):
        _, _, field_name = name.partition(".")
        fields = keys(typing.cast(type, annotation))
        if not field_name:
            return Key(path, annotation, optional, key.doc)
        return fields.get(field_name) and Key(path, fields[field_name].type, fields[field_name].optional)
    return Key(path, annotation, optional, key.doc)


def _walk(cls: type, prefix: str) -> Iterator[Key]:
    docs = docstrings(cls)
    for name, annotation in typing.get_type_hints(cls).items():
        path = f"{prefix}{name}"
        inner, optional = _unwrap(annotation)
        yield Key(path, inner, optional, docs.get(name, ""))
        if is_dataclass(inner):
            yield from _walk(typing.cast(type, inner), f"{path}.")


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    if annotation is Any:
        return Any, True
    if typing.get_origin(annotation) in (Union, types.UnionType):
        inner = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        return inner[0], True
    return annotation, False


@cache
def _module_docstrings(module: types.ModuleType) -> dict[tuple[str, str], str]:
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[node.name, field.target.id] = " ".join(text.value.value.split())
    return found


def docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field of a dataclass of this package, inherited fields included."""
    found = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(schema.__package__):
            texts = _module_docstrings(inspect.getmodule(base) or schema)
            found.update({field: text for (owner, field), text in texts.items() if owner == base.__name__})
    return found
