"""Request body of the native `/generate`, under SGLang's names."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sglk.server.body import Body
from sglk.server.sampling import SamplingFields

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio_data": ([],),
    "custom_logit_processor": (),
    "image_data": ([],),
    "input_embeds": (),
    "lora_path": ("",),
    "return_hidden_states": (False,),
    "return_logprob": (False,),
    "return_routed_experts": (False,),
    "session_params": (),
    "token_ids_logprob": ([],),
    "top_logprobs_num": (0,),
    "video_data": ([],),
}
"""Features of SGLang's route that the server lacks, with the values that ask for nothing."""


class NativeSampling(SamplingFields):
    """`sampling_params`."""

    max_new_tokens: int | None = Field(default=None, ge=1, description="a whole number of at least 1, or null")


class GenerateBody(Body):
    """Body of `POST /generate`: `text` or `input_ids`, one prompt or a list of them."""

    text: str | list[str] | None = Field(default=None, description="a string or a list of strings")
    input_ids: list[int] | list[list[int]] | None = Field(
        default=None, description="a list of token ids or a list of such lists"
    )
    sampling_params: NativeSampling | list[NativeSampling] | None = Field(
        default=None, description="an object, or a list with one object per prompt"
    )
    stream: bool | None = Field(default=None, description="true or false")
    rid: str | list[str] | None = Field(default=None, description="a string, or a list with one string per prompt")
