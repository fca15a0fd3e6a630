"""Steps of a simulated device that are alike, taken by one call instead of thousands. Letters: T tokens, E width."""

from collections import OrderedDict
from dataclasses import dataclass, field

import torch

from sglk.attention.base import AttentionBackend, AttentionStep
from sglk.backends.base import DeviceBackend, WorkClock
from sglk.models.causal_lm import CausalLM

MOST_SHAPES = 512


@dataclass(frozen=True, slots=True)
class _Attended:
    """The arguments of one layer's attention."""

    layer_id: int
    q_THD: torch.Tensor
    k_TKD: torch.Tensor
    v_TKD: torch.Tensor


@dataclass(slots=True)
class _Step:
    """What a step of so many tokens comes to."""

    attended: list[_Attended] = field(default_factory=list)
    attention_s: float = 0.0
    rest_s: float = 0.0
    x_TE: torch.Tensor | None = None


class RememberedSteps(CausalLM):
    """A model that computes nothing, run once for each number of tokens.

    All of a step but its attention depends on the number of its tokens alone. So the time of the rest is remembered,
    and only attention, whose time depends on the rows, is called again. The device's time is that of the model itself;
    Python's would else be longer than the time of a fast chip.
    """

    def __init__(self, model: CausalLM, backend: DeviceBackend, clock: WorkClock) -> None:
        super().__init__(model.spec, backend, model.dtype, model.ranks)
        self.context = model.context
        self.head = model.head
        self._model = model
        self._clock = clock
        self._steps: OrderedDict[int, _Step] = OrderedDict()

    def trunk(self, ids_T: torch.Tensor, positions_T: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """Return x_TE without content."""
        tokens = len(ids_T)
        step = self._steps.get(tokens)
        if step is None:
            return self._first(ids_T, positions_T, attention)
        self._steps.move_to_end(tokens)
        self._clock.charge(step.rest_s)
        for each in step.attended:
            attention.forward(each.layer_id, each.q_THD, each.k_TKD, each.v_TKD)
        assert step.x_TE is not None
        return step.x_TE

    def _first(self, ids_T: torch.Tensor, positions_T: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        step = _Step()
        before_s = self._clock.busy_s
        step.x_TE = self._model.trunk(ids_T, positions_T, _Observed(attention, step, self._clock))
        step.rest_s = self._clock.busy_s - before_s - step.attention_s
        self._steps[len(ids_T)] = step
        if len(self._steps) > MOST_SHAPES:
            self._steps.popitem(last=False)
        return step.x_TE


class _Observed(AttentionBackend):
    """Attention that notes its calls and their time in `step`."""

    def __init__(self, attention: AttentionBackend, step: _Step, clock: WorkClock) -> None:
        self._attention = attention
        self._step = step
        self._clock = clock

    def plan(self, step: AttentionStep) -> None:
        """Hand on."""
        self._attention.plan(step)

    def forward(self, layer_id: int, q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> torch.Tensor:
        """Hand on, and note."""
        before_s = self._clock.busy_s
        out_THD = self._attention.forward(layer_id, q_THD, k_TKD, v_TKD)
        self._step.attention_s += self._clock.busy_s - before_s
        self._step.attended.append(_Attended(layer_id, q_THD, k_TKD, v_TKD))
        return out_THD
