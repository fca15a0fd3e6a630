"""The source of functions together with all of sglk that they need, so that a script can do without sglk.

Functions and constants are copied. Classes are imported: they are the types of the contract, which a plugin for sglk
has at hand, and its ops may ask whether an argument is one of theirs.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

OWN = "sglk"


@dataclass
class Inlined:
    """Text of a script."""

    imports: set[str] = field(default_factory=set)
    """Import statements of one name each."""
    definitions: dict[str, str] = field(default_factory=dict)
    """Source of functions and constants by name, each after those that it needs."""
    owners: dict[str, str] = field(default_factory=dict)
    """Module that each name comes from."""


def import_block(imports: Iterable[str]) -> str:
    """Return import statements of one name each as people write them: one line for a module, sorted."""
    names: dict[str, list[str]] = {}
    plain = []
    for statement in sorted(imports):
        module, _, name = statement.removeprefix("from ").partition(" import ")
        if statement.startswith("from "):
            names.setdefault(module, []).append(name)
        else:
            plain.append(statement)
    return "\n".join([*plain, *(f"from {module} import {', '.join(own)}" for module, own in names.items())])


def inline(functions: Sequence[Callable[..., Any]]) -> Inlined:
    """Return the source of `functions`, which are at the top level of modules of sglk, and of what they need."""
    inlined = Inlined()
    for function in functions:
        _add(inlined, sys.modules[function.__module__], function.__name__)
    return inlined


def _add(inlined: Inlined, module: ModuleType, name: str) -> None:
    statement = _top_level(module).get(name)
    if statement is None:
        # Built in, or the name of an argument.
        return
    if isinstance(statement, ast.Import | ast.ImportFrom):
        _add_imported(inlined, statement, name)
    elif isinstance(statement, ast.ClassDef):
        inlined.imports.add(f"from {module.__name__} import {name}")
    elif name in inlined.owners:
        owner = inlined.owners[name]
        assert owner == module.__name__, f"{owner} and {module.__name__} both define {name}"
    else:
        inlined.owners[name] = module.__name__
        _add_definition(inlined, module, name, statement)


def _add_imported(inlined: Inlined, statement: ast.Import | ast.ImportFrom, name: str) -> None:
    alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
    if isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] == OWN:
        owner = importlib.import_module(str(statement.module))
        if not isinstance(getattr(owner, alias.name), ModuleType):
            assert alias.asname is None, f"{name} has another name where it is defined"
            _add(inlined, owner, alias.name)
        return
    only = (
        ast.ImportFrom(statement.module, [alias], 0) if isinstance(statement, ast.ImportFrom) else ast.Import([alias])
    )
    inlined.imports.add(ast.unparse(only))


def _add_definition(inlined: Inlined, module: ModuleType, name: str, statement: ast.stmt) -> None:
    modules = dict(_own_modules(module))
    text = ast.get_source_segment(inspect.getsource(module), statement)
    assert text is not None
    for node in _nodes(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            _add(inlined, modules[node.value.id], node.attr)
        elif isinstance(node, ast.Name) and node.id not in modules and node.id != name:
            _add(inlined, module, node.id)
    inlined.definitions[name] = _without_modules(text, statement, modules)
    if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
        # An op: other functions call it by its `reference`.
        inlined.definitions[name] += f"\n\n\n{name}.reference = {name}"


def _nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield what the source of a statement consists of, which is without its decorators."""
    left_out = {id(node) for each in getattr(statement, "decorator_list", ()) for node in ast.walk(each)}
    return (node for node in ast.walk(statement) if id(node) not in left_out)


def _without_modules(text: str, statement: ast.stmt, modules: dict[str, ModuleType]) -> str:
    """Return the source with `name` for each `module.name` of a module of sglk."""
    lines = text.splitlines()
    places = [
        (node.value.lineno - statement.lineno, node.value.col_offset, len(node.value.id) + 1)
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    ]
    for line, column, length in sorted(places, reverse=True):
        # Columns of the first line count from where the statement begins.
        start = column - (statement.col_offset if line == 0 else 0)
        lines[line] = lines[line][:start] + lines[line][start + length :]
    return "\n".join(lines)


@cache
def _top_level(module: ModuleType) -> dict[str, ast.stmt]:
    """Return the statement that gives each name of a module its meaning."""
    return {name: statement for statement in ast.parse(inspect.getsource(module)).body for name in _names(statement)}


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _own_modules(module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    for name, value in vars(module).items():
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == OWN:
            yield name, value
