"""Sessions that stay where they are: weighted rendezvous hashing."""

import math
from collections.abc import Collection, Mapping
from hashlib import blake2b


def home_of(session: str, weights: Mapping[str, float], eligible: Collection[str]) -> str | None:
    """Return the eligible name that `session` belongs to; None when none has a weight above 0.

    Each name draws u in (0, 1) from a hash of itself and the session; the highest w / -ln(u) wins. So the share of
    sessions of a name is its weight's, a change of weights moves only the sessions that it must, and those of a name
    that goes are spread over the others, each once. (Highest random weight, Thaler and Ravishankar 1998; that the
    minimum of exponential variables falls to each in the ratio of the rates gives the weights.)
    """
    best, highest = None, 0.0
    for name in eligible:
        weight = weights.get(name, 0.0)
        if weight > 0 and (score := weight / -math.log(_draw(session, name))) > highest:
            best, highest = name, score
    return best


def _draw(session: str, name: str) -> float:
    # Surrogates: a header may hold any bytes.
    digest = blake2b(f"{name}\0{session}".encode(errors="surrogatepass"), digest_size=7).digest()
    return (int.from_bytes(digest, "big") + 1) / (2**56 + 2)
