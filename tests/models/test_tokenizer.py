import json

import pytest
import transformers
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models

from sglk.errors import ModelLoadError
from sglk.models.byte_level import byte_characters, byte_tokenizer, character_bytes
from sglk.models.dummy_tokenizer import dummy_tokenizer
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_tokenizer import read_gguf_tokenizer
from sglk.models.tokenizer import Tokenizer, read_tokenizer
from sglk.testing.tiny import CHATML, write_json, write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf

TEXTS = ["", "hello", "  two  spaces \n\n\tend ", "你好👩‍👩‍👧é", "<|im_start|>user\nhi<|im_end|>", "it's 12345 O'Clock"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), chat_template=CHATML)


def test_bytes_and_their_characters_are_a_bijection():
    assert len(set(byte_characters())) == 256
    assert all(character_bytes()[character] == byte for byte, character in enumerate(byte_characters()))
    assert byte_characters()[ord(" ")] == "Ġ"


@pytest.mark.parametrize("text", TEXTS)
def test_a_byte_tokenizer_maps_text_to_its_bytes(text):
    tokenizer = byte_tokenizer(special_tokens=())
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_equal_those_of_transformers(folder, text):
    ours, theirs = read_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", TEXTS)
def test_a_gguf_file_gives_the_same_tokenizer(folder, tmp_path, text):
    ours = read_gguf_tokenizer(GgufFile(write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=CHATML)))
    theirs = read_tokenizer(folder)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    for name in ("vocab_size", "bos_token", "eos_token", "bos_token_id", "eos_token_ids", "chat_template"):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_core(folder, text):
    core = Core.from_file(str(folder / "tokenizer.json"))
    assert read_tokenizer(folder).encode(text) == core.encode(text).ids


def test_the_longest_token_bounds_what_fits(folder):
    assert read_tokenizer(folder).longest_token_bytes >= len("<|im_start|>")
    unknown = Core(models.WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]"))
    assert Tokenizer(unknown).longest_token_bytes is None


def test_special_tokens_are_single_ids_and_left_out_of_text(folder):
    tokenizer = read_tokenizer(folder)
    ids = tokenizer.encode("a<|im_end|>b")
    assert ids == [97, 259, 98]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.is_special(259)
    assert not tokenizer.is_special(97)
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (260, 256, {257})


def test_ids_beyond_the_vocabulary_have_no_text(folder):
    tokenizer = read_tokenizer(folder)
    assert tokenizer.decode([97, 319, 98]) == "ab"
    assert tokenizer.token_bytes(319) == b""


def test_broken_bytes_become_replacement_characters(folder):
    assert read_tokenizer(folder).decode([0xE4, 0xBD, 97]) == "\ufffda"


def test_token_bytes_join_to_the_text(folder):
    tokenizer = read_tokenizer(folder)
    text = "你好👩‍👩‍👧é <|eos|>"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_token_bytes_of_a_sentencepiece_vocabulary():
    vocabulary = {"<unk>": 0, "<0xE4>": 1, "▁the": 2}
    core = Core(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(core)
    assert [tokenizer.token_bytes(id_) for id_ in (1, 2)] == [b"\xe4", b" the"]


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is not a tokenizer"):
        read_tokenizer(tmp_path)


def rewrite(folder, **changes):
    file = folder / "tokenizer_config.json"
    write_json(file, json.loads(file.read_text()) | changes)


def test_special_tokens_may_be_objects_or_stand_in_their_own_file(tmp_path):
    write_tiny_model(tmp_path)
    rewrite(tmp_path, bos_token={"content": "<|bos|>", "lstrip": False}, eos_token=None)
    write_json(tmp_path / "special_tokens_map.json", {"eos_token": "<|im_end|>"})
    tokenizer = read_tokenizer(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_ids) == ("<|bos|>", "<|im_end|>", {259})
    rewrite(tmp_path, eos_token=7)
    with pytest.raises(ModelLoadError, match="`eos_token` must be a token's text, not 7"):
        read_tokenizer(tmp_path)


def test_chat_templates_come_from_four_places(tmp_path):
    write_tiny_model(tmp_path)
    assert read_tokenizer(tmp_path).chat_template is None
    rewrite(tmp_path, chat_template="one")
    assert read_tokenizer(tmp_path).chat_templates == {"default": "one"}
    rewrite(tmp_path, chat_template=[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}])
    assert read_tokenizer(tmp_path).chat_templates == {"default": "d", "tool_use": "t"}
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("r")
    assert read_tokenizer(tmp_path).chat_templates == {"default": "file", "tool_use": "t", "rag": "r"}


@pytest.mark.parametrize("value", [7, [7], [{"name": "default"}], [{"name": "default", "template": 7}], {"a": "b"}])
def test_a_malformed_template_entry_is_named(tmp_path, value):
    write_tiny_model(tmp_path)
    rewrite(tmp_path, chat_template=value)
    with pytest.raises(ModelLoadError, match="`chat_template` must be a text, or a list of objects"):
        read_tokenizer(tmp_path)


def test_the_dummy_tokenizer_needs_room_for_bytes_and_special_tokens():
    assert dummy_tokenizer(260).vocab_size == 260
    with pytest.raises(ModelLoadError, match="vocab_size 259 is too small for a byte tokenizer"):
        dummy_tokenizer(259)
