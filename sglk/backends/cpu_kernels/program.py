"""A recorded step of the cpu backend: calls of C functions, and between them those of torch's ops."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from sglk.backends.cpu_kernels.signatures import SIGNATURES, adapter

FIELDS = {"p": "Q", "n": "Q", "i": "q", "f": "f4x"}
"""How `struct` writes an argument of each letter as a word."""


class Program:
    """What was done, in order, on memory that stays where it is."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._replay = library.sglk_replay
        self._replay.restype, self._replay.argtypes = None, [ctypes.c_char_p, ctypes.c_size_t]
        self._words: list[bytes] = []
        self._parts: list[Callable[[], object]] = []
        self._held: list[Any] = []
        self.num_torch_calls = 0

    def add(self, name: str, arguments: Sequence[int | float | None]) -> None:
        """Write a call of `sglk_{name}` down."""
        address = ctypes.cast(getattr(self._library, adapter(name)), ctypes.c_void_p).value
        fields = "".join(FIELDS[letter] for letter in SIGNATURES[name])
        values = [0 if value is None else value for value in arguments]
        self._words.append(struct.pack(f"=QQ{fields}", address, len(values), *values))

    def add_torch(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Write a call of torch's down; its results are put where they are now."""
        self._close_words()
        self._parts.append(TorchCall(function, args, kwargs, result))
        self.num_torch_calls += 1

    def hold(self, value: Any) -> None:
        """Keep memory alive that calls have addresses of."""
        self._held.append(value)

    def finish(self) -> None:
        """Add nothing from now on."""
        self._close_words()

    def run(self) -> None:
        """Do it all again."""
        for part in self._parts:
            part()

    def _close_words(self) -> None:
        if self._words:
            words, calls = b"".join(self._words), len(self._words)
            self._words = []
            # Not a function of this object: it would live until somebody looks for cycles, with all that it holds.
            self._parts.append(partial(self._replay, words, calls))


class TorchCall:
    """A call of one of torch's ops, whose results keep their places."""

    def __init__(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._results = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
        self._into = _variant_that_writes(function)
        if self._into is not None:
            self._kwargs = {**kwargs, "out": result}

    def __call__(self) -> None:
        """Compute again."""
        if self._into is not None:
            self._into(*self._args, **self._kwargs)
            return
        again = tree_flatten(self._function(*self._args, **self._kwargs))[0]
        tensors = (each for each in again if isinstance(each, torch.Tensor))
        for held, new in zip(self._results, tensors, strict=True):
            # An op that writes to an argument returns that.
            if new is not held:
                held.copy_(new)


def _variant_that_writes(function: Any) -> Any:
    """Return the variant of an op that puts its one result where it is told, or None."""
    variant = getattr(function.overloadpacket, "out", None)
    if variant is None:
        return None
    *taken, _ = ((each.name, str(each.type)) for each in variant._schema.arguments)
    same = taken == [(each.name, str(each.type)) for each in function._schema.arguments]
    return variant if same and not function._schema.is_mutable else None
