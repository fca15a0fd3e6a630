"""Calls of the C functions by one backend, which it can record and repeat as one."""

import ctypes
from typing import Any

import torch

from sglk.backends.cpu_kernels.program import Program
from sglk.backends.cpu_kernels.room import Room
from sglk.backends.cpu_kernels.signatures import LETTERS, SIGNATURES


class Calls:
    """The functions of the library, and the memory of what they return; used by one thread at a time."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.library = library
        self.threads = threads
        """That compute a call, the calling one included."""
        self._functions: dict[str, Any] = {}
        for name, signature in SIGNATURES.items():
            function = getattr(library, f"sglk_{name}", None)
            if function is not None:
                function.restype, function.argtypes = None, [LETTERS[letter] for letter in signature]
                self._functions[name] = function
        self.room = Room()
        """Memory of recorded steps."""
        self._program: Program | None = None

    @property
    def recording(self) -> bool:
        """Whether what is called is also written down."""
        return self._program is not None

    def __call__(self, name: str, *arguments: int | float | None) -> None:
        """Call `sglk_{name}`; addresses are those of tensors of `empty`, or of what outlives a recorded step."""
        self._functions[name](*arguments)
        if self._program is not None:
            self._program.add(name, arguments)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return memory for a result; that of a recorded step is its own as long as anybody holds the tensor."""
        if self._program is None:
            return torch.empty(shape, dtype=dtype)
        return self.room.empty(shape, dtype)

    def begin(self) -> Program:
        """Write down what is called from now on."""
        self._program = Program(self.library)
        return self._program

    def end(self) -> None:
        """Write down no more."""
        self._program = None
