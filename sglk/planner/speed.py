"""How fast a planned replica would answer: estimates from the price of its steps."""

from dataclasses import dataclass

from sglk.config.schema import RuntimeConfig
from sglk.errors import ConfigError
from sglk.planner.calibration.find import AUTO, NONE
from sglk.planner.cost.model import Basis, CostModel, cost_model
from sglk.planner.cost.shape import StepShape
from sglk.planner.plan import ReplicaPlan

_HALF = 2
"""A request's context is half prompt, half answer; a token of the answer is made behind three quarters on average."""


@dataclass(frozen=True)
class Speed:
    """Estimated times of one replica, in seconds."""

    basis: Basis
    prompt: int
    """Tokens of the prompt whose first token is waited for: half of the planned context."""
    ttft_s: float
    """Of that prompt alone in an idle engine."""
    context: int
    """Tokens behind which answers are decoded: three quarters of the planned context."""
    tpot_alone_s: float
    """Of one request."""
    requests: int
    """Most that decode together: what the KV pool and `max_running_requests` leave room for."""
    tpot_together_s: float
    """Of each of them."""

    @property
    def output_tokens_per_s(self) -> float:
        """Of all of them together, while nobody's prompt is computed."""
        return self.requests / self.tpot_together_s


def estimated_speed(plan: ReplicaPlan, calibration: str = AUTO) -> Speed | str | None:
    """Return the estimate; why there is none, where the chip has no figures; None where no such request has room.

    Raises ConfigError where the calibration that the user named is not one for this replica.
    """
    if not plan.found.requests(plan.wanted.context_length):
        return None
    try:
        model = cost_model(plan.config, calibration)
    except ConfigError as error:
        if calibration not in (AUTO, NONE):
            raise
        return str(error)
    return _speed(plan, model)


def _speed(plan: ReplicaPlan, model: CostModel) -> Speed:
    prompt = max(1, plan.wanted.context_length // _HALF)
    context = prompt + prompt // _HALF
    requests = max(1, min(plan.config.runtime.max_running_requests, plan.found.requests(plan.wanted.context_length)))
    alone, together = (model.step_s(StepShape(decodes=(context,) * rows, logits=rows)) for rows in (1, requests))
    arrival_s = model.arrival_s + prompt * model.arrival_token_s
    ttft_s = arrival_s + prefill_s(model, prompt, plan.config.runtime) + model.delivery_s
    return Speed(model.basis, prompt, ttft_s, context, alone, requests, together)


def prefill_s(model: CostModel, prompt: int, runtime: RuntimeConfig) -> float:
    """Return the seconds of the steps of one prompt that nobody shares with it."""
    chunk = prompt if runtime.chunked_prefill_size == -1 else runtime.chunked_prefill_size
    chunk = min(chunk, prompt if runtime.chunked_prefill_size == -1 else runtime.max_prefill_tokens)
    ends = [*range(chunk, prompt, chunk), prompt]
    shapes = (
        StepShape(((end - start, end),), logits=int(end == prompt))
        for start, end in zip([0, *ends], ends, strict=False)
    )
    return sum(map(model.step_s, shapes))
