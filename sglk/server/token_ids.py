"""Token ids of requests for engines elsewhere, of which SGLang ends when one is outside its vocabulary."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from sglk.config.schema import ModelConfig
from sglk.errors import RequestError, SglkError
from sglk.models.files import find_files
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_spec import read_gguf_spec
from sglk.models.hf_config import read_spec

_FIELDS = ("prompt", "input_ids")


def vocabulary_of(models: Iterable[ModelConfig]) -> int | None:
    """Return the size of the smallest vocabulary among those that this machine knows; None where it knows none."""
    return min(filter(None, map(_size, models)), default=None)


def require_known(fields: Mapping[str, Any], vocab_size: int) -> None:
    """Raise RequestError for a token id outside the vocabulary; what else a prompt may be is for the engine to say."""
    for name in _FIELDS:
        for row in _rows(fields.get(name)):
            for token in row:
                if isinstance(token, int) and not 0 <= token < vocab_size:
                    message = f"token id {token} is outside the vocabulary; use 0 to {vocab_size - 1}"
                    raise RequestError(message, param=name, code="invalid_token_id")


def _rows(prompt: Any) -> list[list[Any]]:
    if not isinstance(prompt, list):
        return []
    return [prompt, *(row for row in prompt if isinstance(row, list))]


def _size(model: ModelConfig) -> int | None:
    if model.path is None:
        return model.vocab_size
    # An engine may know architectures that sglk does not.
    with suppress(SglkError):
        files = find_files(model)
        spec = read_gguf_spec(GgufFile(files.path)) if files.format == "gguf" else read_spec(files.path)
        return spec.vocab_size
    return None
