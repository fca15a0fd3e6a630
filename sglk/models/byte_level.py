"""Byte-level vocabularies: the printable stand-in of each byte, and a tokenizer of single bytes."""

from collections.abc import Sequence
from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

BOS, EOS, IM_START, IM_END = "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (BOS, EOS, IM_START, IM_END)
BOS_ID, EOS_ID, IM_START_ID, IM_END_ID = range(256, 260)
"""Special tokens of a byte vocabulary: they follow the bytes."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Chat template that uses these special tokens."""


@cache
def byte_characters() -> tuple[str, ...]:
    """Return the printable character that stands for each byte 0..255 in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 bytes stand for themselves, the other bytes are moved to U+0100 and up, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    characters, moved = [], 0
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + moved))
            moved += 1
    return tuple(characters)


@cache
def character_bytes() -> dict[str, int]:
    """Return the inverse of `byte_characters`."""
    return {character: byte for byte, character in enumerate(byte_characters())}


def byte_tokenizer(special_tokens: Sequence[str] = SPECIAL_TOKENS) -> tokenizers.Tokenizer:
    """Return a tokenizer in which token id b is byte b, and `special_tokens` have the ids from 256 on."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special_tokens])
    return tokenizer
