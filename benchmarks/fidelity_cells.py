"""What the simulator is asked to predict: settings, under loads, of workloads, of two models.

The settings of a cell were chosen for what they do to the engine: how many decode together, how many tokens a step has
of a prompt, whether prompts are computed at all, whose turn it is. No two of a cell do the same, for those have no
order: near ties of an earlier layout, whose measurements and predictions were known, were taken out. Where requests
queue up there are more of them: the median of few lies between those that wait and those that do not, by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BASE: Mapping[str, object] = {
    "chunked_prefill_size": 512,
    "max_running_requests": 16,
    "schedule_policy": "fcfs",
    "enable_mixed_chunk": False,
    "disable_radix_cache": False,
    "radix_min_len": 0,
    # The same on every machine, whatever memory is free.
    "max_total_tokens": 16384,
    "schedule_conservativeness": 1.0,
}
"""Settings that a cell changes some of; all can be changed while the weights stay loaded."""

MODELS: Mapping[str, Sequence[str]] = {
    "smollm2": ("model=smollm2",),
    # 0.2 billion numbers of no meaning: wider and flatter than the first.
    "dummy": ("model=qwen0_5b", "model.name=dummy", "model.num_hidden_layers=6", "runtime.load_format=dummy"),
}


@dataclass(frozen=True)
class Cell:
    """One workload at one load on one model, with the settings that are compared on it."""

    name: str
    model: str
    workload: Sequence[str]
    settings: Mapping[str, Mapping[str, object]]
    load: float | None = None
    """Requests that come, as a share of what the base setting can serve; None = a closed loop."""
    saturated: bool = field(default=False)
    """Whether requests queue up: the latency of the last ones then says how long the run was, and little else."""

    @property
    def arrival_bound(self) -> bool:
        """Whether requests come more slowly than the base setting serves them: throughput is then their pace."""
        return self.load is not None and not self.saturated

    def words(self, rate: float | None) -> list[str]:
        """Return the workload as typed; `rate` is that of all requests where they come by themselves."""
        open_loop = [] if rate is None else ["workload.arrival=poisson", f"workload.rate={rate:.6g}"]
        limit = [] if rate is None else ["workload.concurrency=0"]
        return [*self.workload, "workload.warmup_requests=1", *open_loop, *limit]


def _random(requests: int, prompt: int, answer: int, at_a_time: int = 8) -> list[str]:
    return [
        "workload=random",
        f"workload.num_requests={requests}",
        f"workload.input_len={prompt}",
        f"workload.output_len={answer}",
        "workload.range_ratio=0.5",
        f"workload.concurrency={at_a_time}",
    ]


_SMALL = _random(16, 128, 32)
_SHARED = (
    "workload=shared_prefix",
    "workload.num_requests=16",
    "workload.num_prefixes=2",
    "workload.prefix_len=256",
    "workload.input_len=32",
    "workload.output_len=24",
    "workload.concurrency=8",
)
_CHAT = (
    "workload=chat",
    "workload.num_requests=15",
    "workload.turns=3",
    "workload.num_prefixes=2",
    "workload.prefix_len=96",
    "workload.input_len=48",
    "workload.output_len=24",
    "workload.concurrency=6",
)
_CHUNK_16 = {"chunked_prefill_size": 16}
_CHUNK_32_MIXED = {"chunked_prefill_size": 32, "enable_mixed_chunk": True}
_WINDOW_1, _WINDOW_2, _WINDOW_4 = ({"max_running_requests": rows} for rows in (1, 2, 4))
_SHORTEST_FIRST = {**_WINDOW_2, "schedule_policy": "shortest_prompt_first"}
_NO_CACHE = {"disable_radix_cache": True}

CELLS = (
    Cell(
        "random, 8 at a time",
        "smollm2",
        _SMALL,
        {
            "base": {},
            "window 4": _WINDOW_4,
            "window 2": _WINDOW_2,
            "chunk 16": _CHUNK_16,
        },
    ),
    Cell(
        "random, light",
        "smollm2",
        _random(12, 128, 32),
        {"base": {}, "chunk 32, mixed": _CHUNK_32_MIXED},
        load=0.5,
    ),
    Cell(
        "random, medium",
        "smollm2",
        _random(14, 128, 32),
        {"base": {}, "window 2": _WINDOW_2, "chunk 16": _CHUNK_16},
        load=0.8,
    ),
    Cell(
        "random, above saturation",
        "smollm2",
        _random(40, 128, 32),
        {"base": {}, "window 4": _WINDOW_4, "window 2, shortest first": _SHORTEST_FIRST},
        load=1.25,
        saturated=True,
    ),
    Cell(
        "shared prefix, 8 at a time",
        "smollm2",
        _SHARED,
        {
            "base": {},
            "longest match, window 4": {**_WINDOW_4, "schedule_policy": "lpm"},
            "no prefix cache": _NO_CACHE,
        },
    ),
    Cell(
        "chat, 6 at a time",
        "smollm2",
        _CHAT,
        {"base": {}, "window 2": _WINDOW_2, "no prefix cache": _NO_CACHE},
    ),
    Cell(
        "little memory, 10 at a time",
        "smollm2",
        _random(14, 96, 80, at_a_time=10),
        {
            "448 tokens": {"max_total_tokens": 448},
            "768 tokens, bold": {"max_total_tokens": 768, "schedule_conservativeness": 0.2},
            "2048 tokens": {"max_total_tokens": 2048},
        },
        saturated=True,
    ),
    Cell(
        "random, 8 at a time",
        "dummy",
        _random(12, 128, 24),
        {"base": {}, "window 4": _WINDOW_4, "window 1": _WINDOW_1, "chunk 16": _CHUNK_16},
    ),
    Cell(
        "random, medium",
        "dummy",
        _random(12, 128, 24),
        {"base": {}, "window 2": _WINDOW_2, "chunk 16": _CHUNK_16},
        load=0.6,
    ),
    Cell(
        "random, above saturation",
        "dummy",
        _random(32, 128, 24),
        {"base": {}, "window 4": _WINDOW_4, "window 2, shortest first": _SHORTEST_FIRST},
        load=1.25,
        saturated=True,
    ),
)

QUICK = (
    Cell("random, 8 at a time", "smollm2", _random(8, 64, 16), {"base": {}, "window 2": _WINDOW_2}),
    Cell("random, medium", "smollm2", _random(8, 64, 16), {"base": {}, "chunk 16": _CHUNK_16}, load=0.7),
)
