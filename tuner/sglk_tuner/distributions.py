"""The space in Optuna's terms, and the sampler that gives a trial the point we chose."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from sglk_tuner.space import Params, is_ordered

LOG_RATIO = 8
"""Knobs whose largest candidate is at least this many times the smallest are searched on a logarithmic scale."""


def distributions_of(candidates: Mapping[str, tuple[Any, ...]], default: Params) -> dict[str, BaseDistribution]:
    """Return one distribution per key that covers its candidates and the default, which may lie beside them."""
    return {key: _distribution((*values, default[key])) for key, values in candidates.items()}


def _distribution(values: tuple[Any, ...]) -> BaseDistribution:
    distinct = tuple(dict.fromkeys(values))
    if not is_ordered(distinct):
        return CategoricalDistribution(distinct)
    low, high = min(distinct), max(distinct)
    log = low > 0 and high / low >= LOG_RATIO
    if all(isinstance(value, int) for value in distinct):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


class PointSampler(BaseSampler):
    """Study sampler that returns one given point: the tuner keeps its own exact books of what to run next."""

    def __init__(self, point: Params) -> None:
        self._point = point

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return nothing: every value is set on its own."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing: every value is set on its own."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the point's value."""
        return self._point[param_name]
