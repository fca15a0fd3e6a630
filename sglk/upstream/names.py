"""What SGLang and vLLM call the values that sglk has names of its own for."""

from collections.abc import Mapping, Sequence

from sglk.config.engine_schema import UpstreamConfig
from sglk.config.schema import RuntimeConfig, ServeConfig
from sglk.errors import ConfigError
from sglk.upstream.arguments import Arguments

DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

QUIET = "warning"
"""Level of upstream's own HTTP log: sglk's router logs every request, and its probes would fill the file."""


class NoEquivalent(ConfigError):
    """The version has nothing that means what a runtime parameter says."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        """The parameter, without `runtime.`."""


def log_level(config: ServeConfig) -> str:
    """Return `server.log_level`, as far as Python's own logging has it."""
    return "debug" if config.server.log_level == "trace" else config.server.log_level


def add_model_names(arguments: Arguments, config: ServeConfig, model: str) -> None:
    """Add what both engines call the same: the model's revision, its name in the API, and its chat template."""
    if config.model.revision is not None and model == config.model.hub_id:
        arguments.set("--revision", config.model.revision, "model.revision")
    name = config.server.served_model_name or config.model.name
    arguments.set("--served-model-name", name, "server.served_model_name")
    if config.server.chat_template is not None:
        arguments.set("--chat-template", config.server.chat_template, "server.chat_template")


def kv_cache_dtype(runtime: RuntimeConfig, choices: Sequence[str], title: str) -> str:
    """Return the engine's word for `runtime.kv_cache_dtype`; raises NoEquivalent where it has none."""
    asked = runtime.kv_cache_dtype
    name = DTYPES.get(asked, asked)
    if name in choices:
        return name
    if asked == runtime.dtype:
        return "auto"  # the compute dtype
    have = ", ".join(["auto", *(ours for ours, theirs in DTYPES.items() if theirs in choices and ours != "auto")])
    have += "".join(f", {each}" for each in choices if each.startswith("fp8_e"))
    message = f"runtime.kv_cache_dtype={asked}: {title} has none of this kind; allowed: {have}"
    raise NoEquivalent("kv_cache_dtype", message)


def page_size(arguments: Arguments, config: ServeConfig) -> int:
    """Return the tokens of a KV page: `runtime.page_size`, or the nearest that the engine takes on the chip.

    Raises NoEquivalent for a shortest prefix beyond a page: upstream caches share whole pages from the first one on.
    """
    runtime, title = config.runtime, arguments.table.title
    limits = config.backend.upstream.get(config.engine.name, UpstreamConfig())
    page = limits.page_size or -(-runtime.page_size // limits.page_multiple) * limits.page_multiple
    if page != runtime.page_size:
        arguments.note(f"runtime.page_size={runtime.page_size} becomes {page}, which {title} takes on this chip")
    if runtime.radix_min_len > page and runtime.radix_min_len > runtime.page_size and not runtime.disable_radix_cache:
        title = f"{title}, whose prefix cache keeps every page of {page} tokens"
        raise refuse("radix_min_len", runtime.radix_min_len, title, "write runtime.radix_min_len=0")
    return page


def refuse(name: str, value: object, title: str, way_out: str) -> NoEquivalent:
    """Return the error for a runtime parameter that the engine has no equivalent of."""
    return NoEquivalent(name, f"runtime.{name}={value} has no equivalent in {title}; {way_out}")


def quantization(asked: str, words: Mapping[str, str], title: str) -> str:
    """Return the engine's word for `runtime.quantization`; raises NoEquivalent where it has none."""
    if asked not in words:
        allowed = f"allowed: null, {', '.join(words)}"
        told = f"runtime.quantization={asked}: {title} does not make it from a plain checkpoint; {allowed}"
        raise NoEquivalent("quantization", told)
    return words[asked]
