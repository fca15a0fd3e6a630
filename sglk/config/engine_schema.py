"""Settings of the engine, and what a chip's software asks of engines that are not sglk's own."""

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass
class EngineConfig:
    """The serving engine."""

    name: str = "native"
    """`native`, or `sglang` or `vllm`: the real one, launched as a process of its own behind sglk's router."""
    version: Optional[str] = None
    """Version of an upstream engine, for whose command line settings are translated; null with `native`."""
    python: Optional[str] = None
    """Interpreter of the environment that an upstream engine is installed in; null = the one that runs sglk."""
    start_timeout_s: float = 1800.0
    """How long an upstream engine may take until it generates a token."""
    logs: str = "logs"
    """Folder for the output of upstream engines, one file per replica."""
    nnodes: int = 1
    """Machines that one upstream engine spans, equal in devices; `sglk serve` is started on each of them."""
    node_rank: int = 0
    """Which of these machines this is; number 0 answers requests."""
    dist_init_addr: Optional[str] = None
    """`HOST:PORT` of machine 0, at which the others find it."""
    executor: Optional[str] = None
    """How vLLM reaches its devices: `mp`, or `ray` for those of a running Ray cluster; null = vLLM decides."""
    extra_args: dict[str, Any] = field(default_factory=dict)
    """Flags handed to an upstream engine as they are, without their dashes; `native` takes none."""


@dataclass
class UpstreamConfig:
    """What one upstream engine needs on a chip."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables for its process; one that is set already stays."""
    flags: dict[str, Any] = field(default_factory=dict)
    """Flags without their dashes, such as `attention-backend: triton`; `engine.extra_args` goes before."""
    page_size: Optional[int] = None
    """The one size of KV pages that it takes, in place of `runtime.page_size`; null = any."""
    page_multiple: int = 1
    """Tokens of which a page must be a multiple; `runtime.page_size` is rounded up to one."""
    gguf: bool = False
    """Whether it computes with the weights of GGUF files there, if it reads such files at all."""
