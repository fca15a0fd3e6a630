"""What one choice changes while all others stay: weights by scheme and number of devices, KV tokens by dtype."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sglk.backends.schemes import ON_LOAD
from sglk.config.quantization import schemes_of
from sglk.planner.dtypes import BYTES, kv_dtype
from sglk.planner.ways import Subject, Wanted
from sglk.planner.weights import schemes_by_size


@dataclass(frozen=True)
class WeightOption:
    """Weights of one device."""

    dtype: str
    quantization: str | None
    """Scheme of the linear layers; None = in `dtype`."""
    tp_size: int
    weights: int
    """Bytes."""
    declared: bool
    """Whether the chip has the scheme."""


@dataclass(frozen=True)
class KVOption:
    """The KV pool of one device with keys and values in another dtype."""

    dtype: str
    bytes_per_token: int
    tokens: int
    requests: int


def weight_options(subject: Subject) -> Iterator[WeightOption]:
    """Yield the weights in each compute dtype of the chip and each scheme, for every number of devices.

    Of a checkpoint that is quantised already its own scheme is the only one.
    """
    chip, own = subject.chip, subject.footprint(subject.runtime)
    if subject.model.checkpoint is None:
        for dtype in dict.fromkeys((own.dtype, *(name for name in chip.dtypes if name in BYTES))):
            for size in subject.tp_sizes():
                yield WeightOption(dtype, None, size, subject.model.weights(dtype, None, size).total, True)
        schemes = {kind: subject.model.scheme(kind) for kind in schemes_by_size(frozenset(ON_LOAD))}
    else:
        schemes = {subject.model.checkpoint.scheme.kind: subject.model.checkpoint.scheme}
    for kind, scheme in schemes.items():
        for size in subject.tp_sizes():
            total = subject.model.weights(own.dtype, scheme, size).total
            yield WeightOption(own.dtype, kind, size, total, kind in schemes_of(chip.quantization))


def kv_options(subject: Subject, wanted: Wanted) -> Iterator[KVOption]:
    """Yield the pool in the chosen dtype and in each other that the chip takes."""
    own = kv_dtype(subject.runtime, subject.chip)
    for dtype in dict.fromkeys((own, *subject.kv_dtypes())):
        found = subject.footprint(replace(subject.runtime, kv_cache_dtype=dtype))
        yield KVOption(dtype, found.kv_bytes_per_token, found.kv_tokens, found.requests(wanted.context_length))
