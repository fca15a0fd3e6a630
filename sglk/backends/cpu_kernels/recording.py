"""Recording what is computed on the processor, so that it can be repeated without the interpreter."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.program import Program
from sglk.errors import BackendError

T = TypeVar("T")

HOST_READS = frozenset({"tolist", "item", "numpy", "__array__", "__bool__", "__int__", "__index__", "__float__"})
MOST_TORCH_CALLS = 24
"""A step keeps what torch computes in it; a model that runs on kernels needs about five calls, for its positions."""
ALLOCATIONS = ("aten::empty", "aten::new_empty")


class RecordedWork(Generic[T]):
    """Work that was done once, and what it came to."""

    def __init__(self, program: Program, result: T) -> None:
        self._program = program
        self.result = result

    def replay(self) -> T:
        """Do it again, on what its inputs hold now; the result is written to where it was."""
        self._program.run()
        return self.result


class NoHostReads(TorchFunctionMode):
    """Refuses what would be of the recorded step for ever."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, unless Python sees numbers by it."""
        if getattr(func, "__name__", "") in HOST_READS:
            raise BackendError("the host reads from the device while a graph is recorded")
        return func(*args, **(kwargs or {}))


class TorchCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what torch computes; views and memory without content are only kept."""

    def __init__(self, program: Program) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._program = program

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do without torch's compiler, which takes seconds to load and has no part in this."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func` and write it down."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.name().startswith(ALLOCATIONS):
            self._program.hold(result)
        # Not every op whose result may be a view returns one.
        elif func._schema.is_mutable or not _is_view(result, args):
            self._program.add_torch(func, args, kwargs, result)
        return result


def record(calls: Calls, runnable: Callable[[], T]) -> RecordedWork[T]:
    """Do the work of `runnable` and record it; raises BackendError where it cannot be repeated, or is mostly torch's.

    All that is recorded shares its memory, results too: they hold until anything else is recorded or repeated.
    """
    program = calls.begin()
    try:
        with torch.inference_mode(), NoHostReads(), TorchCalls(program):
            result = runnable()
    finally:
        calls.end()
    program.finish()
    if program.num_torch_calls > MOST_TORCH_CALLS:
        raise BackendError(f"{program.num_torch_calls} calls of torch's ops lie between those of kernels")
    shared = tree_map(lambda each: calls.room.shared(each) if isinstance(each, torch.Tensor) else each, result)
    return RecordedWork(program, shared)


def _is_view(result: Any, args: Sequence[Any]) -> bool:
    """Return whether all of the result is memory of the first argument."""
    if not isinstance(args[0], torch.Tensor):
        return False
    place = _place(args[0])
    results = [result] if isinstance(result, torch.Tensor) else tree_flatten(result)[0]
    return all(_place(each) == place for each in results if isinstance(each, torch.Tensor))


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
