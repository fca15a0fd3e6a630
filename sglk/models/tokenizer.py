"""Text to token ids and back, from a tokenizer.json or from what a GGUF file carries."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from sglk.errors import ModelLoadError, RequestError
from sglk.models.byte_level import character_bytes
from sglk.models.fields import Fields, read_json_if_present

_SPACE = "▁"
_READS_PIECES = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIPS_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
"""How SentencePiece vocabularies are read back: pieces and single bytes, then perhaps without the first space."""

_BYTE_PIECES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


class Tokenizer:
    """One model's vocabulary, special tokens and chat templates."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self._core = core
        added = core.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self._special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self._byte_level = isinstance(core.decoder, decoders.ByteLevel)
        self._reads_pieces, self.drops_first_space = _piece_reading(core.decoder)
        self._bytes_of: dict[int, bytes] = {}
        self._shown: dict[int, bytes] = dict.fromkeys(self._special_ids, b"")
        self.bos_token = bos_token
        """Text of the token that starts a prompt, for chat templates."""
        self.eos_token = eos_token
        self.bos_token_id = None if bos_token is None else core.token_to_id(bos_token)
        eos_id = None if eos_token is None else core.token_to_id(eos_token)
        self.eos_token_ids = frozenset(eos_token_ids) | ({eos_id} if eos_id is not None else frozenset())
        """Tokens that end an answer."""
        self.chat_templates = dict(chat_templates or {})
        """Jinja2 texts by name; the usual one is `default`."""
        vocabulary = core.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the largest token id; the model's own vocabulary may be padded beyond it."""
        self.longest_token_bytes = _longest(core, vocabulary)
        """Most bytes of a text that one token may stand for, counted generously; None where there is no such limit."""

    @property
    def chat_template(self) -> str | None:
        """The default chat template, or None."""
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`.

        `add_special_tokens` adds what the model wants around every text, such as its BOS token; leave it out for
        rendered chat templates, which write their special tokens themselves. Raises RequestError for half of a
        surrogate pair.
        """
        try:
            # Unlike `encode`, the batched form lets other threads run meanwhile; it gives the same ids.
            return self._core.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError:
            # The library's own texts cannot hold it, and its message does not say so.
            if not any("\ud800" <= character <= "\udfff" for character in text):
                raise
        message = "the text has half of a surrogate pair (\\ud800 to \\udfff), which is no text; leave it out"
        raise RequestError(message, param="prompt", code="invalid_value")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary nothing."""
        if not self._reads_pieces:
            return self._core.decode(ids, skip_special_tokens=skip_special_tokens)
        # Where one byte of a run is no UTF-8, the library gives up all of the run.
        spelt = b"".join(map(self.shown_bytes if skip_special_tokens else self.token_bytes, ids))
        text = spelt.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.drops_first_space else text

    def is_special(self, token_id: int) -> bool:
        """Return whether `decode` leaves this token out."""
        return token_id in self._special_ids

    @property
    def joins_bytes(self) -> bool:
        """Whether the text of tokens is their `shown_bytes`, joined, but for `drops_first_space`."""
        return self._byte_level or self._reads_pieces

    def shown_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text: nothing for special and unknown tokens."""
        shown = self._shown.get(token_id)
        if shown is None:
            shown = self._shown[token_id] = self.token_bytes(token_id)
        return shown

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character; nothing for unknown ids."""
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        token = self._core.id_to_token(token_id)
        if token is None:
            return b""
        if not self._byte_level:
            return _BYTE_PIECES.get(token) or token.replace(_SPACE, " ").encode()
        if token_id in self._added_ids:
            return token.encode()
        table = character_bytes()
        # As the library has it, a token with other characters stands for itself.
        return bytes(map(table.__getitem__, token)) if table.keys() >= set(token) else token.encode()


def _piece_reading(decoder: decoders.Decoder | None) -> tuple[bool, bool]:
    """Return whether `decoder` reads SentencePiece's pieces, and whether it leaves out the first space."""
    if not isinstance(decoder, decoders.Sequence):
        return False, False
    steps = json.loads(decoder.__getstate__())["decoders"]
    strips = steps[-1:] == [_STRIPS_SPACE]
    return steps[: len(steps) - strips] == _READS_PIECES, strips


def _longest(core: tokenizers.Tokenizer, vocabulary: Iterable[str]) -> int | None:
    """Return the longest token's bytes where all text is spelt out, byte by byte if need be.

    Elsewhere one token for the unknown may stand for any text. Normal forms such as NFC shorten a text to a third at
    most.
    """
    spelt = isinstance(core.decoder, decoders.ByteLevel) or "<0x00>" in vocabulary
    longest = max((len(token.encode()) for token in vocabulary), default=0)
    if not spelt or not longest:
        return None
    return longest if core.normalizer is None else 3 * longest


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a Hugging Face folder: tokenizer.json, its configuration and its chat templates."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelLoadError(f"{folder} has no tokenizer.json; add it (transformers' `save_pretrained` writes one)")
    settings = read_json_if_present(folder / "tokenizer_config.json")
    special = read_json_if_present(folder / "special_tokens_map.json")
    return Tokenizer(
        _read_core(file),
        bos_token=_token_text(settings, "bos_token") or _token_text(special, "bos_token"),
        eos_token=_token_text(settings, "eos_token") or _token_text(special, "eos_token"),
        chat_templates=_chat_templates(folder, settings),
    )


def _read_core(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    # The library raises bare Exception for a damaged file.
    except Exception as error:
        raise ModelLoadError(f"{file} is not a tokenizer this library reads: {error}; download it again") from error


def _token_text(settings: Fields, key: str) -> str | None:
    """Return a special token, which is stored as text or as an object with `content`."""
    value = settings.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise settings.wrong(key, "a token's text")
    return value


def _chat_templates(folder: Path, settings: Fields) -> dict[str, str]:
    """Collect the templates of tokenizer_config.json (a text, or a list of named ones) and of *.jinja files."""
    templates = _configured_templates(settings)
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    return templates | {name: _read_template(file) for name, file in files.items() if file.exists()}


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ModelLoadError(f"cannot read {file}: {reason}; download it again") from error


def _configured_templates(settings: Fields) -> dict[str, str]:
    value: Any = settings.values.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        templates = {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError):
        templates = {"?": None}
    if not all(isinstance(text, str) for text in (*templates, *templates.values())):
        raise settings.wrong("chat_template", "a text, or a list of objects with `name` and `template`")
    return templates
