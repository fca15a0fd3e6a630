"""Text is cut into pieces as llama.cpp cuts it, which merges the neighbours that make the piece of the best score."""

import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglk.engine.detokenizer import detokenizer_for
from sglk.engine.grammar import Grammars
from sglk.engine.messages import Grammar
from sglk.errors import ModelLoadError
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_sentencepiece import SPACE
from sglk.models.gguf_tokenizer import read_gguf_tokenizer
from sglk.models.tokenizer import Tokenizer

WORDS = ["the", "th", "he", "in", "er", "an", "▁t", "▁the", "▁a", "▁an", "and", "▁and", "▁▁", "ther", "é", "你", "ing"]
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [SPACE, *"abcdefghijklmnopqrstuvwxyz<>/"]
TOKENS = [*CONTROL, *BYTES, *WORDS, *LETTERS, "<think>"]
TYPES = [
    gguf.TokenType.UNKNOWN,
    *[gguf.TokenType.CONTROL] * 2,
    *[gguf.TokenType.BYTE] * 256,
    *[gguf.TokenType.NORMAL] * (len(WORDS) + len(LETTERS)),
    gguf.TokenType.USER_DEFINED,
]
SCORES = [0.0] * 259 + [-float(rank) for rank in range(len(WORDS) + len(LETTERS))] + [0.0]


def tokenizer_of(file: Any, **values: Any) -> Tokenizer:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_scores(values.pop("scores", SCORES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in values.items():
        getattr(writer, key)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf_tokenizer(GgufFile(file))


def pieces_by_score(text: str) -> list[int]:
    """Merge, again and again, the leftmost pair that makes the piece of the best score; bytes where no piece is."""
    ids = {token: id_ for id_, token in enumerate(TOKENS)}
    symbols = list((" " + text).replace(" ", SPACE))
    while True:
        made = [(ids.get(left + right), at) for at, (left, right) in enumerate(pairwise(symbols))]
        known = [(-SCORES[id_], at) for id_, at in made if id_ is not None and id_ >= 259]
        if not known:
            break
        at = min(known)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    spelt = ([ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()] for symbol in symbols)
    return [id_ for one in spelt for id_ in one]


def test_text_is_cut_as_llama_cpp_does(tmp_path):
    tokenizer = tokenizer_of(tmp_path / "v.gguf")
    drawn = random.Random(0)
    alphabet = [*WORDS, *"etahin ", " ", "  ", "é", "你", "好", "\n", "👩‍👧", "A"]
    texts = ["".join(drawn.choices(alphabet, k=length)).replace(SPACE, " ") for length in (1, 2, 5, 20, 60) * 8]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == [1, *pieces_by_score(text)], text
        assert tokenizer.decode(ids) == tokenizer._core.decode(ids) == text
        assert b"".join(tokenizer.token_bytes(id_) for id_ in ids[1:]) == (" " + text).encode()
        streamed = detokenizer_for(tokenizer, ())
        assert "".join([*map(streamed.push, ids), streamed.flush()]) == text


@given(st.lists(st.integers(0, len(TOKENS)), max_size=60), st.lists(st.integers(0, len(TOKENS) - 1), max_size=12))
@example([3 + byte for byte in b"\xe3\xf0a\xe4\xbd\xa0"], [3 + byte for byte in "好".encode()])
def test_whatever_comes_bytes_that_are_no_text_spoil_no_others(ids, prompt):
    tokenizer = vocabulary()
    streamed = detokenizer_for(tokenizer, [*prompt, 266])
    text = "".join([*map(streamed.push, ids), streamed.flush()])
    assert text == b"".join(tokenizer.token_bytes(id_) for id_ in ids if not tokenizer.is_special(id_)).decode(
        errors="replace"
    )
    assert tokenizer.decode(ids) == text.removeprefix(" ")


@cache
def vocabulary() -> Tokenizer:
    with TemporaryDirectory() as folder:
        return tokenizer_of(Path(folder) / "v.gguf")


def test_an_answer_keeps_its_first_space_after_any_prompt(tmp_path):
    tokenizer = tokenizer_of(tmp_path / "v.gguf")
    for prompt in ("and", "好", "好" * 7, "👩👩👩👩", "x好👩"):
        streamed = detokenizer_for(tokenizer, tokenizer.encode(prompt))
        assert streamed.push(TOKENS.index("▁the")) == " the", prompt


def test_an_answer_can_be_guided_through_any_text(tmp_path):
    tokenizer = tokenizer_of(tmp_path / "v.gguf")
    grammars = Grammars(tokenizer, len(TOKENS), {2})
    for text in ("thing and  the", "é 你好", " an"):
        guide = grammars.guide(Grammar("choice", json.dumps([text])))
        answer: list[int] = []
        while not answer or answer[-1] != 2:
            mask = guide.allowed()
            answer.append(max(token for token in range(len(TOKENS)) if mask[token // 32] >> (token % 32) & 1))
            guide.follow(answer, 0)
        assert b"".join(map(tokenizer.token_bytes, answer[:-1])).decode() == text


def test_special_tokens_match_whole_and_the_text_after_begins_a_word(tmp_path):
    tokenizer = tokenizer_of(tmp_path / "v.gguf")
    the = TOKENS.index("▁the")
    assert tokenizer.encode("the</s>the<think>", add_special_tokens=False) == [the, 2, the, len(TOKENS) - 1]
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.encode("<unk>", add_special_tokens=False) == [0]
    assert tokenizer.decode([0, the]) == "the"


def test_the_file_decides_on_the_first_space_and_the_first_token(tmp_path):
    tokenizer = tokenizer_of(tmp_path / "v.gguf", add_add_space_prefix=False, add_add_bos_token=False)
    assert tokenizer.encode("the") == [TOKENS.index("the")]
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


@pytest.mark.parametrize("scores", [[0.0], [float("nan")] * len(TOKENS)])
def test_scores_must_fit_the_tokens(tmp_path, scores):
    with pytest.raises(ModelLoadError, match=rf"`tokenizer\.ggml\.scores` must be a list of {len(TOKENS)} numbers"):
        tokenizer_of(tmp_path / "v.gguf", scores=scores)
