"""Token ids of requests for engines elsewhere, of which SGLang ends when one is outside its vocabulary."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from sglk.config.catalogue import models
from sglk.config.schema import ModelConfig
from sglk.errors import RequestError, SglkError
from sglk.models.files import find_files
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_spec import read_gguf_spec
from sglk.models.hf_config import read_spec

_FIELDS = ("prompt", "input_ids")


def vocabulary_of(given: Iterable[ModelConfig]) -> int | None:
    """Return the size of the smallest vocabulary among those that this machine knows; None where it knows none."""
    return min(filter(None, map(_size, given)), default=None)


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
    # An engine may know architectures that sglk does not; and where it has just got a model from the hub, it is here.
    with suppress(SglkError, OSError):
        files = find_files(model, "dummy")
        spec = read_gguf_spec(GgufFile(files.path)) if files.format == "gguf" else read_spec(files.path)
        return spec.vocab_size
    return model.vocab_size if _is_listed(model) else None


def _is_listed(model: ModelConfig) -> bool:
    """Return whether its numbers are those of its files: with other files, those of a listed model stay as they are."""
    return model.path is None and any(
        (listed.package, listed.hub_id, listed.vocab_size) == (model.package, model.hub_id, model.vocab_size)
        for listed in models().entries
    )
