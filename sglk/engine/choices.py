"""Several answers to one prompt."""

import hashlib
from dataclasses import replace

from sglk.engine.messages import SamplingParams


def for_choice(params: SamplingParams, index: int) -> SamplingParams:
    """Return `params` for answer number `index` of one request.

    The first keeps the request's seed; each other one gets a seed of its own, derived from it, so that samples differ
    and the same request gives the same samples again.
    """
    if params.seed is None or index == 0:
        return params
    digest = hashlib.blake2b(f"{params.seed}/{index}".encode(), digest_size=8).digest()
    return replace(params, seed=int.from_bytes(digest, "big") >> 1)
