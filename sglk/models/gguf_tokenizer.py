"""The tokenizer inside a GGUF file: SentencePiece, or byte-level BPE with the pre-tokenizers of common families."""

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from sglk.errors import ModelLoadError
from sglk.models.fields import Fields
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_sentencepiece import sentencepiece_core
from sglk.models.gguf_spec import eos_token_ids
from sglk.models.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type`; only normal tokens come out of the merges."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_OTHER}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_OTHER}"
_LEAD, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Mistral's: a capital within a word begins another one."""
_PATTERNS = {"llama-bpe": _LLAMA3, "qwen2": _QWEN2, "tekken": _TEKKEN}

_FAMILY = {
    "gpt-2": "gpt-2",
    "smollm": "smollm",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "tekken": "tekken",
}
"""`tokenizer.ggml.pre` to the family that splits text in the same way."""


_WHOLE_WORDS = ("llama-bpe", "tekken")
"""Families that take a word of the vocabulary without merging, and whose texts start with BOS unless a file says no."""


def read_gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Return the tokenizer in `file`; raises ModelLoadError naming the key that is missing or not supported."""
    metadata = Fields(file.metadata, str(file.path))
    kind = metadata.text("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if kind == "gpt2":
        core, starts_with_bos = _byte_level_core(metadata, tokens)
    elif kind == "llama":
        core, starts_with_bos = sentencepiece_core(metadata, tokens, _types(metadata, tokens)), True
    else:
        raise metadata.wrong("tokenizer.ggml.model", "'gpt2' (byte-level BPE) or 'llama' (SentencePiece)")
    _mark_added_tokens(core, metadata, tokens)
    bos, eos = (_token(metadata, tokens, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    if bos is not None and metadata.flag("tokenizer.ggml.add_bos_token", starts_with_bos):
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    return Tokenizer(
        core,
        bos_token=bos,
        eos_token=eos,
        eos_token_ids=eos_token_ids(metadata),
        chat_templates=_chat_templates(metadata),
    )


def _byte_level_core(metadata: Fields, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Return what splits text, and whether llama.cpp starts each with BOS where the file does not say."""
    family = _FAMILY.get(metadata.text("tokenizer.ggml.pre", "gpt-2"))
    if family is None:
        raise metadata.wrong("tokenizer.ggml.pre", f"one of {', '.join(_FAMILY)}")
    core = tokenizers.Tokenizer(_bpe(metadata, tokens, ignore_merges=family in _WHOLE_WORDS))
    core.pre_tokenizer = _pre_tokenizer(family)
    core.decoder = decoders.ByteLevel()
    if family == "qwen2":
        core.normalizer = normalizers.NFC()
    return core, family in _WHOLE_WORDS


def _bpe(metadata: Fields, tokens: list[str], ignore_merges: bool) -> models.BPE:
    # The format cannot express an empty list, so a vocabulary of single bytes has no merges at all.
    has_merges = metadata.has("tokenizer.ggml.merges") or any(len(token) > 1 for token in _plain(metadata, tokens))
    pairs = (merge.partition(" ") for merge in _strings(metadata, "tokenizer.ggml.merges")) if has_merges else ()
    # Both are tokens that are there already: not two more strings for each merge.
    same = {token: token for token in tokens}
    merges = [(same.get(left, left), same.get(right, right)) for left, _, right in pairs]
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    try:
        return models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)
    # The library raises bare Exception where a merge names a token that is not in the vocabulary.
    except Exception as error:
        raise ModelLoadError(f"{metadata.origin}: `tokenizer.ggml.merges` does not fit the tokens: {error}") from error


def _pre_tokenizer(family: str) -> pre_tokenizers.PreTokenizer:
    """Return how text is split before merging; in all families a piece is then spelt in byte characters."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if family == "gpt-2":
        return gpt2
    if family == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_PATTERNS[family]), behavior="isolated"), spelling])


def _mark_added_tokens(core: tokenizers.Tokenizer, metadata: Fields, tokens: list[str]) -> None:
    """Make control, user-defined and unknown tokens match as a whole, before any splitting."""
    core.add_tokens(
        [
            AddedToken(token, special=type_ != _USER_DEFINED, normalized=False)
            for token, type_ in zip(tokens, _types(metadata, tokens), strict=True)
            if type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )


def _plain(metadata: Fields, tokens: list[str]) -> list[str]:
    """Return the tokens that text is made of."""
    return [token for token, type_ in zip(tokens, _types(metadata, tokens), strict=True) if type_ == _NORMAL]


def _types(metadata: Fields, tokens: list[str]) -> list[int]:
    types = metadata.values.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ModelLoadError(f"{metadata.origin}: `tokenizer.ggml.token_type` must be a list of {len(tokens)} integers")
    return types


def _token(metadata: Fields, tokens: list[str], key: str) -> str | None:
    id_ = min(metadata.token_ids(key), default=None)
    if id_ is None:
        return None
    if id_ >= len(tokens):
        raise metadata.wrong(key, f"below the {len(tokens)} tokens")
    return tokens[id_]


def _chat_templates(metadata: Fields) -> dict[str, str]:
    """Return the default template and the named ones (`tokenizer.chat_template.<name>`)."""
    prefix = "tokenizer.chat_template"
    templates = {"default": metadata.text(prefix)} if metadata.has(prefix) else {}
    named = (key for key in metadata.values if key.startswith(f"{prefix}."))
    return templates | {key.removeprefix(f"{prefix}."): metadata.text(key) for key in named}


def _strings(metadata: Fields, key: str) -> list[str]:
    value = metadata.values.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise metadata.wrong(key, "a list of strings")
    return value
