"""How the memory of a device is shared out between weights, KV pool and the rest, for one set of runtime parameters."""

from dataclasses import dataclass

from sglk.config.schema import ChipConfig, RuntimeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.engine.capacity import KVNeed, fitting_tokens, planned_bytes
from sglk.errors import CapacityError
from sglk.planner.dtypes import compute_dtype, kv_dtype
from sglk.planner.kv import kv_bytes_per_token
from sglk.planner.model import PlannedModel
from sglk.planner.reserve import RUNTIME_BYTES, activation_bytes
from sglk.planner.room import Room
from sglk.planner.weights import Weights


@dataclass(frozen=True)
class Footprint:
    """What one of `tp_size` devices holds; sizes in bytes."""

    dtype: str
    quantization: str | None
    """Scheme of the linear layers; None = in the compute dtype."""
    kv_dtype: str
    tp_size: int
    weights: Weights
    kv_bytes_per_token: int
    kv_tokens: int
    """Tokens of the pool in whole pages; all devices of a replica hold the same tokens. 0 = the engine cannot start."""
    page_size: int
    planned: int
    """Memory that `mem_fraction_static` is a share of."""
    static: int
    """That share: weights and KV pool together."""
    taken: int
    """What they take: the share, but where the size of the pool is stated whatever that comes to."""
    activations: int
    """Estimate of what the largest step works in."""
    problem: str | None
    """Why the engine cannot start, in its own words."""

    @property
    def kv_bytes(self) -> int:
        """The KV pool of one device."""
        return self.kv_tokens * self.kv_bytes_per_token

    @property
    def reserve_needed(self) -> int:
        """About what everything beside weights and pool takes."""
        return self.activations + RUNTIME_BYTES

    def requests(self, context_length: int) -> int:
        """Return how many requests of so many tokens the pool holds at a time."""
        return self.kv_tokens // (-(-context_length // self.page_size) * self.page_size)

    def bytes_for(self, context_length: int) -> int:
        """Return the pages of one request of so many tokens."""
        return -(-context_length // self.page_size) * self.page_size * self.kv_bytes_per_token

    def longest(self, requests: int) -> int:
        """Return the tokens that each of so many requests can have at a time."""
        return self.kv_tokens // self.page_size // requests * self.page_size


def footprint(model: PlannedModel, chip: ChipConfig, room: Room, runtime: RuntimeConfig) -> Footprint:
    """Return how the engine would fill each device; raises ConfigError where the model's files are of another kind."""
    spec, ranks = model.spec, ranks_of(runtime)
    dtype, of_kv, scheme = compute_dtype(runtime, chip), kv_dtype(runtime, chip), model.scheme(runtime.quantization)
    weights = model.weights(dtype, scheme, ranks)
    per_token = kv_bytes_per_token(spec, of_kv, ranks)
    left = room.beside(weights.total, ranks)
    need = KVNeed(weights.total, per_token, runtime.context_length or spec.max_position_embeddings)
    tokens, problem = 0, None
    if room.holds(weights.total, ranks):
        try:
            tokens = fitting_tokens(need, left, runtime) // runtime.page_size * runtime.page_size
        except CapacityError as error:
            problem = str(error)
    else:
        problem = f"the weights take {weights.total} bytes a device, {room.free} of {room.total} are free"
    planned = planned_bytes(left, runtime)
    static = int(planned * runtime.mem_fraction_static)
    stated = runtime.max_total_tokens is not None and tokens > 0
    return Footprint(
        dtype=dtype,
        quantization=scheme.kind if scheme else None,
        kv_dtype=of_kv,
        tp_size=ranks,
        weights=weights,
        kv_bytes_per_token=per_token,
        kv_tokens=tokens,
        page_size=runtime.page_size,
        planned=planned,
        static=static,
        taken=weights.total + tokens * per_token if stated else static,
        activations=activation_bytes(spec, runtime, dtype),
        problem=problem,
    )
