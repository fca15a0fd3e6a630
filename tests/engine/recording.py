"""A backend that records work as devices do: each op of torch once, on the tensors that it was recorded on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from sglk.backends.base import DeviceGraph
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.recording import NoHostReads
from sglk.backends.cpu_kernels.registration import OPS, PROVIDER
from sglk.backends.ops import Denial

T = TypeVar("T")


class Recorder(TorchDispatchMode):
    """Keeps what is done; what the host computes on the side is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Tape(Generic[T]):
    """Recorded work and what it came to."""

    def __init__(self, recorder: Recorder, result: T) -> None:
        self._calls = recorder.calls
        self.result = result
        self.replays = 0

    def replay(self) -> T:
        made: dict[int, torch.Tensor] = {}

        def present(value: Any) -> Any:
            return made.get(id(value), value) if isinstance(value, torch.Tensor) else value

        for func, args, kwargs, old in self._calls:
            new = func(*tree_map(present, args), **tree_map(present, kwargs))
            for before, now in zip(tree_flatten(old)[0], tree_flatten(new)[0], strict=True):
                if isinstance(before, torch.Tensor):
                    made[id(before)] = now
        self.replays += 1
        result: T = tree_map(present, self.result)
        return result


class RecordingBackend(CpuBackend):
    """The cpu with graphs."""

    capabilities = replace(CpuBackend.capabilities, eager_capture=False)

    def __init__(self, **options: Any) -> None:
        # What is not torch's cannot be recorded.
        own = [Denial(op.name, PROVIDER, "it calls no op of torch") for op in OPS]
        super().__init__(**{"num_threads": 1, **options, "deny": [*options.get("deny", ()), *own]})
        self.capabilities = RecordingBackend.capabilities
        self.tapes: list[Tape[Any]] = []

    def capture_graph(self, runnable: Callable[[], T]) -> DeviceGraph[T]:
        with torch.inference_mode(), NoHostReads(), Recorder() as recorder:
            result = runnable()
        tape = Tape(recorder, result)
        self.tapes.append(tape)
        return tape
