"""Small real configurations and trials for tests of the tuner's parts."""

from typing import Any

from sglk_tuner.objective import Goal
from sglk_tuner.space import Space, build_space
from sglk_tuner.summary import TrialSummary

from sglk.config.bench_schema import WorkloadConfig
from sglk.config.schema import ChipConfig, ModelConfig
from sglk.config.tune_schema import ObjectiveConfig, SearchConfig, TuneConfig

FASTER = Goal("output_throughput", "maximize")
SOONER = Goal("ttft_s_p99", "minimize")
CHUNK, WINDOW, MEMORY = "runtime.chunked_prefill_size", "runtime.max_running_requests", "runtime.mem_fraction_static"
POLICY, PAGE = "runtime.schedule_policy", "runtime.page_size"


def config_of(space: dict[str, list[Any]], **search: Any) -> TuneConfig:
    """Return a configuration that searches `space`."""
    return TuneConfig(
        chip=ChipConfig(name="cpu", title="CPU", vendor="any", backend="cpu", dtypes=["fp32", "bf16"]),
        model=ModelConfig(name="tiny"),
        workload=WorkloadConfig(name="random", kind="random"),
        objective=ObjectiveConfig(name="throughput", goals=["maximize:output_throughput"]),
        search=SearchConfig(name="grid", space=space, **search),
    )


def space_of(space: dict[str, list[Any]]) -> Space:
    """Return the checked space."""
    return build_space(config_of(space))


def trial(number: int, params: dict[str, Any], state: str = "COMPLETE", **values: float) -> TrialSummary:
    """Return a trial as the books show it."""
    return TrialSummary(number, state, "grid", params, values=values)
