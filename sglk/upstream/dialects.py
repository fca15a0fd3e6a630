"""How settings are said to each upstream engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sglk.config.schema import ServeConfig
from sglk.upstream import sglang, vllm
from sglk.upstream.arguments import Arguments


@dataclass(frozen=True)
class Dialect:
    """How settings are said to one engine."""

    module: str
    """What the interpreter runs."""
    add_arguments: Callable[[Arguments, ServeConfig, str], None]
    owned: Mapping[str, str]
    """Setting of sglk per flag that it alone decides."""
    variables: Callable[[ServeConfig], dict[str, str]]
    key_variable: str | None = None
    """Variable that it reads its API key from; None = from the command line alone, where everybody sees it."""
    worker: tuple[str, ...] = ()
    """What the interpreter runs on machines other than the first; empty = the same."""
    gguf: bool = False
    """Whether it reads GGUF files."""


DIALECTS = {
    "sglang": Dialect(sglang.MODULE, sglang.add_arguments, sglang.OWNED, sglang.variables, gguf=True),
    "vllm": Dialect(vllm.MODULE, vllm.add_arguments, vllm.OWNED, vllm.variables, vllm.KEY_VARIABLE, vllm.WORKER),
}
