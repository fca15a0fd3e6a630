"""Request body of the native `/generate`, under SGLang's names."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from sglk.engine.limits import MAX_LOGPROBS
from sglk.server import sampling
from sglk.server.body import Body, Listed, TokenIdList
from sglk.server.sampling import SamplingFields

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio_data": ([],),
    "custom_logit_processor": (),
    "image_data": ([],),
    "input_embeds": (),
    "lora_path": ("",),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "session_params": (),
    "token_ids_logprob": ([],),
    "video_data": ([],),
}
"""Features of SGLang's route that the server lacks, with the values that ask for nothing."""

SAMPLING_NEUTRAL: Mapping[str, tuple[Any, ...]] = {**sampling.NEUTRAL, "max_tokens": (), "min_tokens": (0,)}
"""The same inside of `sampling_params`; OpenAI's names would change nothing there."""

StartLen = Annotated[int, Field(ge=-1)]
MAX_RID_CHARACTERS = 1024
"""Every answer repeats it."""

RequestName = Annotated[str, StringConstraints(max_length=MAX_RID_CHARACTERS)]
TopCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


class NativeSampling(SamplingFields):
    """`sampling_params`."""

    max_new_tokens: int | None = Field(default=None, ge=0, description="a whole number of at least 0, or null")
    min_new_tokens: int | None = Field(default=None, ge=0, description="a whole number of at least 0, or null")


class GenerateBody(Body):
    """Body of `POST /generate`: `text` or `input_ids`, one prompt or a list of them."""

    text: str | Listed[str] | None = Field(default=None, description="a string or a list of strings")
    input_ids: TokenIdList | Listed[TokenIdList] | None = Field(
        default=None, description="a list of token ids or a list of such lists"
    )
    sampling_params: NativeSampling | Listed[NativeSampling] | None = Field(
        default=None, description="an object, or a list with one object per prompt"
    )
    stream: bool | None = Field(default=None, description="true or false")
    return_logprob: bool | Listed[bool] | None = Field(
        default=None, description="true or false, or a list with one per prompt"
    )
    logprob_start_len: StartLen | Listed[StartLen] | None = Field(
        default=None, description="-1 (no prompt token) or a position in the prompt, or a list with one per prompt"
    )
    top_logprobs_num: TopCount | Listed[TopCount] | None = Field(
        default=None, description=f"a whole number from 0 to {MAX_LOGPROBS}, or a list with one per prompt"
    )
    return_text_in_logprobs: bool | None = Field(default=None, description="true or false")
    rid: RequestName | Listed[RequestName] | None = Field(
        default=None, description=f"a string of at most {MAX_RID_CHARACTERS} characters, or a list with one per prompt"
    )
