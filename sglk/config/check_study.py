"""Rules of a study: its goals, its search and its home."""

from collections.abc import Iterator, Sequence

from sglk.config.check_bench import slo_problems
from sglk.config.check_simulate import not_simulated
from sglk.config.keys import leaves, lookup
from sglk.config.ranges import at_least, hint, one_of, positive
from sglk.config.tune_schema import ObjectiveConfig, SearchConfig, TuneConfig

SAMPLERS = ("grid", "random", "tpe")
PRUNERS = ("none", "median")

METRICS = (
    "request_throughput",
    "output_throughput",
    "total_throughput",
    "goodput",
    "success_rate",
    *(
        f"{time}_{figure}"
        for time in ("ttft_s", "tpot_s", "itl_s", "e2e_s")
        for figure in ("mean", "p50", "p90", "p99")
    ),
)
"""Figures of a record's summary, which goals may name."""


def objective_problems(objective: ObjectiveConfig) -> Iterator[str]:
    """Yield what is wrong with the goals of a study."""
    if not objective.goals:
        yield "objective.goals is empty; write at least one, such as [maximize:output_throughput]"
    for goal in objective.goals:
        direction, _, metric = goal.partition(":")
        if direction not in ("maximize", "minimize"):
            yield f"goal {goal!r} of objective.goals is not of the form maximize:METRIC or minimize:METRIC"
        elif metric not in METRICS:
            yield f"metric {metric!r} of goal {goal!r} is unknown{hint(metric, METRICS)}"
    metrics = [goal.partition(":")[2] for goal in objective.goals]
    if len(set(metrics)) < len(metrics):
        yield f"objective.goals={objective.goals} names one metric twice"
    yield from slo_problems("objective.slo", objective.slo)
    slo = objective.slo
    if "goodput" in metrics and slo.ttft_s is None and slo.tpot_s is None and slo.e2e_s is None:
        yield "goal goodput needs a limit; write at least one of objective.slo.ttft_s, .tpot_s, .e2e_s"


def search_problems(search: SearchConfig, objective: ObjectiveConfig, config: TuneConfig) -> Iterator[str]:
    """Yield what is wrong with its search and the space of it."""
    yield from one_of("search.sampler", search.sampler, SAMPLERS)
    yield from one_of("search.pruner", search.pruner, PRUNERS)
    yield from at_least("search.n_trials", search.n_trials, 1)
    yield from at_least("search.seed", search.seed, 0)
    if search.pruner != "none" and len(objective.goals) > 1:
        yield (
            f"search.pruner={search.pruner} works with one goal only, objective.goals has {len(objective.goals)};"
            " write search.pruner=none"
        )
    if not search.space:
        yield "search.space is empty; write candidates, such as search.space.runtime.chunked_prefill_size=[512,1024]"
    for key, candidates in search.space.items():
        yield from _dimension(key, candidates, type(config))


def _dimension(key: str, candidates: Sequence[object], root: type) -> Iterator[str]:
    path = f"search.space.{key}"
    known = lookup(root, key)
    if known is None or not key.startswith("runtime."):
        yield f"{path} does not name a runtime parameter{hint(key, _runtime_keys(root))}"
        return
    if not candidates:
        yield f"{path} has no candidates"
    for value in candidates:
        if not _fits(value, known.type, known.optional):
            yield f"candidate {value!r} of {path} is not {known.wanted}"


def _runtime_keys(root: type) -> list[str]:
    return [path for path in leaves(root) if path.startswith("runtime.")]


def _fits(value: object, wanted: object, optional: bool) -> bool:
    if value is None:
        return optional
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if wanted is bool else str)


def study_problems(config: TuneConfig) -> Iterator[str]:
    """Yield what is wrong with how it treats trials, and with where the times of simulated ones come from."""
    study, calibration = config.study, config.calibration
    if study.simulate:
        yield from not_simulated(config.engine)
    if not calibration:
        yield "calibration is empty; write auto, none or the path of a file"
    if calibration != "auto" and not study.simulate:
        yield f"calibration={calibration} has no use where trials are measured; leave it out, or set study.simulate"
    yield from positive("study.trial_timeout_s", study.trial_timeout_s)
    yield from positive("study.start_timeout_s", study.start_timeout_s)
    yield from at_least("study.repeats", study.repeats, 1)
