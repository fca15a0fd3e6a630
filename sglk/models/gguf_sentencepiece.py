"""The SentencePiece vocabulary of a GGUF file: pieces with scores, as Llama 2 and Mistral have them."""

import math
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from sglk.models.fields import Fields

SPACE = "▁"
"""Stands for a space in a piece."""

_NORMAL, _UNKNOWN = 1, 2
"""Values of `tokenizer.ggml.token_type`: only normal pieces come out of merging."""


def sentencepiece_core(metadata: Fields, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Return what splits text as llama.cpp's `llm_tokenizer_spm` does; raises ModelLoadError where scores do not fit.

    That merges neighbours into the piece of the best score, leftmost first, which is byte-pair encoding whose merges
    are ordered by the scores of what they make.
    """
    if metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        raise metadata.wrong("tokenizer.ggml.remove_extra_whitespaces", "false")
    scores = _scores(metadata, len(tokens))
    unknown = next((token for token, type_ in zip(tokens, types, strict=True) if type_ == _UNKNOWN), None)
    core = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: id_ for id_, token in enumerate(tokens)},
            merges=_merges(tokens, types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # Each stretch of text between special tokens begins a word.
    prefixed = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    spelling = [normalizers.Prepend(SPACE)] if prefixed else []
    core.normalizer = normalizers.Sequence([*spelling, normalizers.Replace(" ", SPACE)])
    reading: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*reading, *([decoders.Strip(" ", 1, 0)] if prefixed else [])])
    return core


def _scores(metadata: Fields, count: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    scores = metadata.values.get(key)
    if not isinstance(scores, list) or len(scores) != count or not all(_is_score(score) for score in scores):
        raise metadata.wrong(key, f"a list of {count} numbers, one for each token")
    return scores


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that makes a piece, those that make one of a better score first."""
    pieces = {token for token, type_ in zip(tokens, types, strict=True) if type_ == _NORMAL}
    best_first = sorted(
        (id_ for id_, token in enumerate(tokens) if len(token) > 1 and token in pieces), key=lambda id_: -scores[id_]
    )
    return [
        (token[:cut], token[cut:])
        for token in (tokens[id_] for id_ in best_first)
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
