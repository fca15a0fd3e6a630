"""What the simulator is asked to predict: settings, under loads, of workloads, of two models."""

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
    """One workload at one load on one model, with the settings that are compared on it: no two decide the same."""

    name: str
    model: str
    workload: Sequence[str]
    settings: Mapping[str, Mapping[str, object]]
    load: float | None = None
    """Requests that come, as a share of what the base setting can serve; None = a closed loop."""
    saturated: bool = field(default=False)
    """Whether requests queue up: the latency of the last ones then says how long the run was, and little else."""

    def words(self, rate: float | None) -> list[str]:
        """Return the workload as typed; `rate` is that of all requests where they come by themselves."""
        open_loop = [] if rate is None else ["workload.arrival=poisson", f"workload.rate={rate:.6g}"]
        limit = [] if rate is None else ["workload.concurrency=0"]
        return [*self.workload, "workload.warmup_requests=2", *open_loop, *limit]


def _random(requests: int, prompt: int, answer: int, at_a_time: int = 8) -> list[str]:
    return [
        "workload=random",
        f"workload.num_requests={requests}",
        f"workload.input_len={prompt}",
        f"workload.output_len={answer}",
        "workload.range_ratio=0.5",
        f"workload.concurrency={at_a_time}",
    ]


_SMALL = _random(24, 128, 32)
_SHARED = (
    "workload=shared_prefix",
    "workload.num_requests=24",
    "workload.num_prefixes=3",
    "workload.prefix_len=256",
    "workload.input_len=32",
    "workload.output_len=16",
    "workload.concurrency=8",
)
_CHAT = (
    "workload=chat",
    "workload.num_requests=24",
    "workload.turns=3",
    "workload.num_prefixes=2",
    "workload.prefix_len=96",
    "workload.input_len=48",
    "workload.output_len=24",
    "workload.concurrency=6",
)
_CHUNK_64, _CHUNK_32 = {"chunked_prefill_size": 64}, {"chunked_prefill_size": 32}
_WINDOW_2, _WINDOW_4 = {"max_running_requests": 2}, {"max_running_requests": 4}

CELLS = (
    Cell(
        "random, 8 at a time",
        "smollm2",
        _SMALL,
        {
            "base": {},
            "chunk 64": _CHUNK_64,
            "chunk 32": _CHUNK_32,
            "window 4": _WINDOW_4,
            "window 2": _WINDOW_2,
            "mixed chunks": {"enable_mixed_chunk": True},
        },
    ),
    Cell("random, light", "smollm2", _random(16, 128, 32), {"base": {}, "window 2": _WINDOW_2}, load=0.35),
    Cell("random, medium", "smollm2", _SMALL, {"base": {}, "window 4": _WINDOW_4, "chunk 64": _CHUNK_64}, load=0.7),
    Cell(
        "random, above saturation",
        "smollm2",
        _SMALL,
        {
            "base": {},
            "window 4": _WINDOW_4,
            "window 4, shortest first": {**_WINDOW_4, "schedule_policy": "shortest_prompt_first"},
        },
        load=1.15,
        saturated=True,
    ),
    Cell(
        "shared prefix, 8 at a time",
        "smollm2",
        _SHARED,
        {
            "base": {},
            "longest match": {"schedule_policy": "lpm", "max_running_requests": 4},
            "no prefix cache": {"disable_radix_cache": True},
        },
    ),
    Cell("chat, 6 at a time", "smollm2", _CHAT, {"base": {}, "no prefix cache": {"disable_radix_cache": True}}),
    Cell(
        "little memory, 10 at a time",
        "smollm2",
        _random(24, 96, 96, at_a_time=10),
        {
            "768 tokens": {"max_total_tokens": 768},
            "768 tokens, bold": {"max_total_tokens": 768, "schedule_conservativeness": 0.2},
            "1536 tokens": {"max_total_tokens": 1536},
        },
        saturated=True,
    ),
    Cell(
        "random, 4 at a time",
        "dummy",
        _random(16, 128, 24, at_a_time=4),
        {"base": {}, "chunk 64": _CHUNK_64, "window 2": _WINDOW_2},
    ),
    Cell("random, medium", "dummy", _random(16, 128, 24), {"base": {}, "window 2": _WINDOW_2}, load=0.6),
    Cell(
        "random, above saturation",
        "dummy",
        _random(16, 128, 24),
        {"base": {}, "window 4": _WINDOW_4},
        load=1.15,
        saturated=True,
    ),
)

QUICK = (
    Cell("random, 8 at a time", "smollm2", _random(8, 64, 16), {"base": {}, "window 2": _WINDOW_2}),
    Cell("random, medium", "smollm2", _random(8, 64, 16), {"base": {}, "chunk 64": _CHUNK_64}, load=0.7),
)
