"""Sampling fields of the request bodies, and the SamplingParams that they become."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from sglk.engine.messages import SamplingParams
from sglk.errors import RequestError
from sglk.server.body import Body

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 256

StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "ebnf": (),
    "frequency_penalty": (0,),
    "json_schema": (),
    "logit_bias": ({},),
    "min_new_tokens": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "no_stop_trim": (False,),
    "presence_penalty": (0,),
    "regex": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_regex": ([],),
    "structural_tag": (),
}
"""Sampling features that the engine lacks, with the values that ask for nothing."""


class SamplingFields(Body):
    """How tokens are chosen: the fields that all generation routes share."""

    temperature: float | None = Field(default=None, ge=0, description="a number from 0 (greedy) upwards")
    top_p: float | None = Field(default=None, gt=0, le=1, description="a number above 0 and up to 1")
    top_k: int | None = Field(default=None, description="-1 (all tokens) or a whole number of at least 1")
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63, description="a whole number of 64 bits")
    n: int | None = Field(default=None, ge=1, description="a whole number of at least 1")
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = Field(
        default=None,
        description=f"a string of 1 to {MAX_STOP_CHARACTERS} characters or a list of up to {MAX_STOP_STRINGS} of them",
    )
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = Field(
        default=None, description=f"a list of up to {MAX_STOP_TOKEN_IDS} token ids"
    )
    ignore_eos: bool | None = Field(default=None, description="true or false")


def sampling_params(fields: SamplingFields, max_new_tokens: int | None) -> SamplingParams:
    """Return the engine's form of `fields`; the engine itself checks their ranges once more."""
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=-1 if fields.top_k is None else fields.top_k,
        seed=fields.seed,
        stop=stop,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
    )


def for_choice(params: SamplingParams, index: int) -> SamplingParams:
    """Return `params` for answer number `index` of one request.

    The first keeps the request's seed; each other one gets a seed of its own, derived from it, so that samples differ
    and the same request gives the same samples again.
    """
    if params.seed is None or index == 0:
        return params
    digest = hashlib.blake2b(f"{params.seed}/{index}".encode(), digest_size=8).digest()
    return dataclasses.replace(params, seed=int.from_bytes(digest, "big") >> 1)


def check_choices(n: int | None, limit: int) -> int:
    """Return `n` (null = 1); raises RequestError above `limit`."""
    count = 1 if n is None else n
    if count > limit:
        raise RequestError(f"`n` must be at most {limit} (server.max_choices), got {count}", param="n")
    return count
