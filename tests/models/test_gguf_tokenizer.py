from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import Regex, pre_tokenizers

from sglk.errors import ModelLoadError
from sglk.models.byte_level import byte_characters
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_tokenizer import read_gguf_tokenizer

SPLIT = {
    # Words of three or more digits, capitals in contractions, and runs of spaces and newlines tell the families apart.
    "gpt-2": ["DON", "'", "T", " it", "'s", " 12345", " ", " x", "\n\n", "\t", "y"],
    "smollm": ["DON", "'", "T", " it", "'s", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n", "\t", "y"],
    "llama-bpe": ["DON", "'T", " it", "'s", " ", "123", "45", " ", " x", "\n\n", "\ty"],
    "qwen2": ["DON", "'T", " it", "'s", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n", "\ty"],
    "tekken": ["DON", "'T", " it", "'s", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n", "\ty"],
}
TEXT = "DON'T it's 12345  x\n\n\ty"


def spelt(text: str) -> str:
    return "".join(byte_characters()[byte] for byte in text.encode())


def write_vocabulary(file, pre: str | None, words=(), merges=("a b",), **values: Any) -> GgufFile:
    """Write a GGUF file whose vocabulary is the bytes, then `words`, then two control tokens."""
    words = [spelt(word) for word in words] or ["ab"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(values.pop("model", "gpt2"))
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*byte_characters(), *words, "<s>", "</s>", "<think>"])
    types = [gguf.TokenType.NORMAL] * (256 + len(words)) + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.USER_DEFINED]
    writer.add_token_types(types[: values.pop("num_types", None)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(values.pop("bos", 256 + len(words)))
    writer.add_eos_token_id(257 + len(words))
    for key, value in values.items():
        getattr(writer, key)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(file)


def pieces(core: tokenizers.Tokenizer, text: str) -> list[str]:
    return [piece for piece, _ in core.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", SPLIT)
def test_text_is_split_as_its_family_does(tmp_path, pre):
    tokenizer = read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", pre))
    assert pieces(tokenizer._core, TEXT) == [spelt(piece) for piece in SPLIT[pre]]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("pre", "pattern"),
    [
        ("qwen2", r"\p{N}"),
        ("llama-bpe", r"\p{N}{1,3}"),
    ],
)
def test_the_patterns_are_those_of_the_published_tokenizers(tmp_path, pre, pattern):
    published = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + pattern
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(published), "isolated")
    text = "Hello WORLD's  12345,67!?\r\n\r\n  你好 --x\t\té 1a٣٤ <|x|> you'LL \n"
    expected = [spelt(piece) for piece, _ in split.pre_tokenize_str(text)]
    assert pieces(read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", pre))._core, text) == expected


def test_tekken_begins_a_word_at_a_capital_and_keeps_no_contraction(tmp_path):
    core = read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", "tekken"))._core
    wanted = ["he", "Said", " don", "'t", " HTTPServer", " ", "2", "0", " a", "//\n", "b"]
    assert pieces(core, "heSaid don't HTTPServer 20 a//\nb") == [spelt(piece) for piece in wanted]


def test_merges_build_words(tmp_path):
    file = write_vocabulary(tmp_path / "v.gguf", "gpt-2", words=["th", "the"], merges=["t h", "th e"])
    assert read_gguf_tokenizer(file).encode("thethat") == [257, 256, ord("a"), ord("t")]


def test_a_llama3_vocabulary_takes_whole_words_without_merges(tmp_path):
    file = write_vocabulary(tmp_path / "v.gguf", "llama-bpe", words=["ab", "xyz"])
    assert read_gguf_tokenizer(file).encode("xyz", add_special_tokens=False) == [257]


@pytest.mark.parametrize(
    ("pre", "said", "added"),
    [
        ("gpt-2", None, False),
        ("llama-bpe", None, True),
        ("gpt-2", True, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_is_added_where_the_file_or_its_family_says_so(tmp_path, pre, said, added):
    values = {} if said is None else {"add_add_bos_token": said}
    tokenizer = read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", pre, **values))
    assert tokenizer.encode("x") == ([257] if added else []) + [ord("x")]
    assert tokenizer.encode("x", add_special_tokens=False) == [ord("x")]


def test_control_tokens_are_special_and_user_defined_ones_are_text(tmp_path):
    tokenizer = read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", "gpt-2"))
    ids = tokenizer.encode("a<think></s>")
    assert ids == [97, 259, 258]
    assert tokenizer.decode(ids) == "a<think>"


def test_every_end_token_counts(tmp_path):
    file = write_vocabulary(tmp_path / "v.gguf", "gpt-2", add_eot_token_id=256, add_eom_token_id=259)
    assert read_gguf_tokenizer(file).eos_token_ids == {256, 258, 259}


def test_qwen2_composes_accents(tmp_path):
    tokenizer = read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", "qwen2"))
    assert tokenizer.encode("e\u0301") == list("é".encode())


def test_a_file_without_a_pre_tokenizer_is_gpt2(tmp_path):
    assert read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", None)).encode("ab") == [256]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "bert"}, r"`tokenizer\.ggml\.model` must be 'gpt2' .* or 'llama'"),
        ({"pre": "bloom"}, r"`tokenizer\.ggml\.pre` must be one of gpt-2, smollm, .*not 'bloom'"),
        ({"merges": ["a zz"]}, r"`tokenizer\.ggml\.merges` does not fit the tokens"),
        ({"merges": ["nothing"]}, r"`tokenizer\.ggml\.merges` does not fit the tokens"),
        ({"merges": []}, r"`tokenizer\.ggml\.merges` must be a list of strings"),
        ({"bos": 9999}, r"`tokenizer\.ggml\.bos_token_id` must be below the 260 tokens"),
        ({"num_types": 9}, r"`tokenizer\.ggml\.token_type` must be a list of 260"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, values, message):
    with pytest.raises(ModelLoadError, match=message):
        read_gguf_tokenizer(write_vocabulary(tmp_path / "v.gguf", **({"pre": "gpt-2"} | values)))
