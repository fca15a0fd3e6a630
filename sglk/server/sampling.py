"""Sampling fields of the request bodies, and the SamplingParams that they become."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from sglk.engine.messages import SamplingParams
from sglk.errors import RequestError
from sglk.server.guided import GrammarFields, grammar_of

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_BIASES = 1024
MAX_N = 2**16
MAX_ID_DIGITS = 19

StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Bias = Annotated[float, Field(ge=-100, le=100)]

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "guided_choice": ([],),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "no_stop_trim": (False,),
    "skip_special_tokens": (True,),
    "stop_regex": ([],),
    "structural_tag": (),
    "structured_outputs": (),
}
"""Sampling features that the engine lacks, with the values that ask for nothing."""


SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
)
"""Fields that the engine knows by the same name; null means the engine's default."""


def _few(biases: Any) -> Any:
    """Count before each entry is looked at: a wrong one costs an error of its own."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        raise ValueError("too many")
    return biases


class SamplingFields(GrammarFields):
    """How tokens are chosen: the fields that all generation routes share."""

    temperature: float | None = Field(default=None, ge=0, description="a number from 0 (greedy) upwards")
    top_p: float | None = Field(default=None, gt=0, le=1, description="a number above 0 and up to 1")
    top_k: int | None = Field(default=None, description="-1 (all tokens) or a whole number of at least 1")
    min_p: float | None = Field(default=None, ge=0, le=1, description="a number from 0 to 1")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, description="a number from -2 to 2")
    repetition_penalty: float | None = Field(default=None, gt=0, le=2, description="a number above 0 and up to 2")
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(_few)] | None = Field(
        default=None,
        description=f'an object of up to {MAX_BIASES} token ids with numbers from -100 to 100, such as {{"42": -100}}',
    )
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63, description="a whole number of 64 bits")
    n: int | None = Field(
        default=None, ge=1, le=MAX_N, description="a whole number from 1 to what the server allows (server.max_choices)"
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = Field(
        default=None,
        description=f"a string of 1 to {MAX_STOP_CHARACTERS} characters or a list of up to {MAX_STOP_STRINGS} of them",
    )
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = Field(
        default=None, description=f"a list of up to {MAX_STOP_TOKEN_IDS} token ids"
    )
    ignore_eos: bool | None = Field(default=None, description="true or false")


def sampling_params(fields: SamplingFields, **more: Any) -> SamplingParams:
    """Return the engine's form of `fields` and of `more`, what the routes have other names for.

    The engine checks all ranges once more.
    """
    given = {name: getattr(fields, name) for name in SAME_NAMES if name in fields.model_fields_set}
    return SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        **more,
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        logit_bias=_biases(fields.logit_bias or {}),
        grammar=grammar_of(fields),
    )


def check_choices(n: int | None, limit: int) -> int:
    """Return `n` (null = 1); raises RequestError above `limit`."""
    count = 1 if n is None else n
    if count > limit:
        raise RequestError(f"`n` must be at most {limit} (server.max_choices), got {count}", param="n")
    return count


def _biases(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) <= MAX_ID_DIGITS):
            message = f'the keys of `logit_bias` must be token ids such as "42", got {key[:60]!r}'
            raise RequestError(message, param="logit_bias", code="invalid_value")
    return tuple((int(key), bias) for key, bias in given.items())
