"""What a chat template may cost.

Templates come with models, and jinja2's sandbox alone does not keep one from working for ever or filling the memory.
"""

import re
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError, nodes, pass_environment
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_CHARACTERS = 2**20
"""Of the template's own text; known ones have up to 20,000."""

MAX_SECONDS = 5.0
"""Longest rendering."""

MAX_CHARACTERS = 2**26
"""Longest text, of the result and on the way to it; twice what the largest body can bring."""

_deadline_s: ContextVar[float] = ContextVar("sglk_template_deadline", default=float("inf"))


class TemplateLimit(TemplateError):
    """A template wanted more time or memory than it may have."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which loops end in time and texts have an end.

    Every turn of a loop and every call looks at the clock; whatever can make a long text out of short ones (`*`, `+`,
    `~`, `**`, paddings, format strings) looks at its length first.
    """

    intercepted_binops = frozenset({"*", "+", "**", "%"})

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.filters["_sglk_turns"] = _turns
        self.filters["_sglk_joined"] = _joined
        self.filters["replace"] = _replace
        self.filters["join"] = pass_environment(_join)
        for name in ("center", "indent", "format", "batch", "slice", "round", "wordwrap", "filesizeformat"):
            self.filters[name] = _careful(self.filters[name])
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TemplateLimit(f"it has {len(source)} characters, more than {MAX_TEMPLATE_CHARACTERS}")
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "_sglk_turns")
        for chain in list(template.find_all(nodes.Concat)):
            parts: nodes.Expr = nodes.List(chain.nodes, lineno=chain.lineno)
            chain.nodes = [_filtered(parts, "_sglk_joined")]
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` if the result stays small."""
        in_time()
        if operator == "**":
            _require(_bits(left) * abs(right if isinstance(right, int) else 1))
        elif operator == "*":
            _require(_length(left) * max(_length(right), right if isinstance(right, int) else 1))
            _require(_length(right) * (left if isinstance(left, int) else 1))
        elif operator == "+":
            _require(_length(left) + _length(right))
        elif isinstance(left, str):
            _check_arguments((left, *(right if isinstance(right, tuple) else (right,))), {})
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        """Return what stands for `str.format` in a template."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> Any:
            _check_arguments((value.__self__, *args), kwargs)
            return wrapped(*args, **kwargs)

        return checked

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` if time is left and nothing asks for a text of millions of characters."""
        in_time()
        text = getattr(function, "__self__", None)
        if isinstance(text, str):
            if function.__name__ == "replace":
                return _replace(text, *args, **kwargs)
            if function.__name__ == "join":
                return _join(self, args[0] if args else (), text)
            _check_arguments((text, *args), kwargs)
        return super().call(context, function, *args, **kwargs)


def rendered(pieces: Iterable[str]) -> str:
    """Return the joined `pieces` that a template generates; raises TemplateLimit."""
    token = _deadline_s.set(time.monotonic() + MAX_SECONDS)
    try:
        texts, length = [], 0
        for piece in pieces:
            length += len(piece)
            _require(length)
            texts.append(piece)
        in_time()
        return "".join(texts)
    finally:
        _deadline_s.reset(token)


def in_time() -> None:
    """Raise TemplateLimit when the rendering has taken too long."""
    if time.monotonic() > _deadline_s.get():
        raise TemplateLimit(f"it takes longer than {MAX_SECONDS:g} s")


def _turns(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        in_time()
        yield item


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _require(sum(map(len, texts)))
    return "".join(texts)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _careful(function: Any) -> Any:
    """Return a filter that looks at its arguments first; its name and what jinja2 passes to it stay."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(args, kwargs)
        return function(*args, **kwargs)

    checked.__dict__.update(vars(function))
    return checked


def _check_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    in_time()
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            _require(abs(value))
        if isinstance(value, str):
            _require_narrow(value)


def _replace(given: object, old: object, new: object, count: int | None = None) -> str:
    text, part, other = str(given), str(old), str(new)
    _require(len(text) + text.count(part) * len(other))
    return text.replace(part, other, -1 if count is None else count)


def _join(environment: Any, items: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    values = items if attribute is None else (environment.getitem(item, attribute) for item in items)
    texts = [str(value) for value in values]
    _require(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _require_narrow(text: str) -> None:
    """Refuse widths of millions in a format string."""
    if re.search(r"[%{][^%{}]*?(\d{7,})", text):
        raise TemplateLimit("a format string asks for a width of millions of characters")


def _require(length: float) -> None:
    if length > MAX_CHARACTERS:
        raise TemplateLimit(f"it makes a text of more than {MAX_CHARACTERS} characters")


def _length(value: Any) -> int:
    if isinstance(value, list | tuple):
        return len(value) + sum(len(each) for each in value if isinstance(each, str))
    return len(value) if isinstance(value, str | bytes) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1
