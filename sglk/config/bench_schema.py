"""Settings of a benchmark: its workload, and how the target is driven."""

from dataclasses import dataclass, field
from typing import Optional

from omegaconf import MISSING

from sglk.config.schema import ServeConfig


@dataclass
class WorkloadConfig:
    """Request shapes and arrivals."""

    name: str = MISSING
    kind: str = MISSING
    """`random`, `shared_prefix`, `chat`, `long_prompt`, or from a file `mooncake`, `azure` (traces) or `sharegpt`."""
    file: Optional[str] = None
    """Trace or conversations of such a kind."""
    num_requests: int = 64
    """Measured requests; warm-up requests come on top."""
    input_len: int = 256
    """Prompt tokens (of the unshared part for `shared_prefix`; of one user turn for `chat`)."""
    output_len: int = 64
    """Tokens generated per request, fixed by `ignore_eos`."""
    range_ratio: float = 1.0
    """Lengths are drawn uniformly from [ratio * len, len]; 1 = fixed."""
    num_prefixes: int = 4
    """Distinct shared prefixes (`shared_prefix`) or system prompts (`chat`)."""
    prefix_len: int = 0
    """Tokens of a shared prefix or system prompt."""
    turns: int = 1
    """Turns per conversation (`chat`), or at most (`sharegpt`); turn k resends the k-1 turns before it."""
    max_input_len: Optional[int] = None
    """Longer prompts of a file are cut to this many tokens; null = none is."""
    max_output_len: Optional[int] = None
    """Longer answers of a file are cut to this many tokens; null = none is."""
    arrival: str = "closed"
    """`closed` (fixed concurrency), `poisson` (open loop) or `trace` (when the requests of a trace came)."""
    time_scale: float = 1.0
    """Seconds here for one second of a trace: 0.5 = twice as fast (`trace`)."""
    concurrency: int = 8
    """Requests in flight (`closed`); upper limit for `poisson` and `trace` when above 0."""
    rate: Optional[float] = None
    """Mean arrivals per second (`poisson`)."""
    warmup_requests: int = 2
    """Sent first, excluded from every figure, counted in the record."""
    seed: int = 0


@dataclass
class SloConfig:
    """Limits that a request must meet to count for goodput; null = no limit."""

    ttft_s: Optional[float] = None
    tpot_s: Optional[float] = None
    e2e_s: Optional[float] = None


@dataclass
class LoadConfig:
    """How a benchmark drives its target."""

    url: Optional[str] = None
    """Running server to drive; null = start the composed engine for this run."""
    api: str = "auto"
    """`generate`, `completions`, `chat`, or `auto` (chat for the chat workload, else generate, else completions)."""
    api_key: Optional[str] = None
    cache: str = "flush"
    """Prefix cache between runs: `flush` it, `salt` the prompts, or `keep` it."""
    salt: Optional[str] = None
    """With `cache=salt`: gives the prompts of an earlier run again, whose record names its salt; null = a new one."""
    sessions: bool = False
    """Each conversation names itself in `router.session_header`, so that device groups keep it where it is."""
    timeout_s: float = 600.0
    """Per request; a slower one counts as failed."""
    max_failure_rate: float = 0.01
    """A run with more failures is not a valid result."""
    output: Optional[str] = None
    """Record file; null = `runs/<time>-<chip>-<model>-<workload>.json`."""
    progress: bool = True
    slo: SloConfig = field(default_factory=SloConfig)


@dataclass
class BenchConfig(ServeConfig):
    """Root of `bench.yaml`: a deployment, a workload, and how to drive it."""

    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    bench: LoadConfig = field(default_factory=LoadConfig)
