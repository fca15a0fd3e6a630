import struct

import gguf
import numpy as np
import pytest

from sglk.backends.kept_kinds import FLOAT_BITS, GGML_NUMBERS, KEPT_BITS
from sglk.errors import ModelLoadError
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_table import read_table
from sglk.testing.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", quantization="Q8_0")


def test_metadata_and_tensors_equal_those_of_the_library_reader(tiny):
    ours, theirs = GgufFile(tiny), gguf.GGUFReader(tiny)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(ours.raw(tensor.name), tensor.data.view(np.uint8))


def test_a_table_without_its_vocabulary_has_the_same_lines(tiny):
    whole, short = read_table(tiny), read_table(tiny, vocabulary=False)
    assert (short.lines, short.data_start) == (whole.lines, whole.data_start)
    texts = {key for key, value in whole.metadata.items() if value != short.metadata[key]}
    assert "tokenizer.ggml.tokens" in texts
    assert all(short.metadata[key] == [] for key in texts)


def test_kinds_have_the_numbers_of_the_library():
    assert {name: gguf.GGMLQuantizationType[name] for name in (*FLOAT_BITS, *KEPT_BITS)} == GGML_NUMBERS


def test_every_kind_of_value_is_read(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "values.gguf", "llama")
    values = {
        "uint8": 200, "int8": -5, "uint16": 60000, "int16": -300, "uint32": 2**31, "int32": -(2**31),
        "uint64": 2**63, "int64": -(2**62), "float32": 0.5, "float64": 0.1, "bool": True, "string": "é你",
    }  # fmt: skip
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_array("strings", ["a", "", "你好"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_custom_alignment(64)
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GgufFile(tmp_path / "values.gguf")

    assert {key: file.metadata[key] for key in values} == values
    assert file.metadata["strings"] == ["a", "", "你好"]
    assert file.metadata["integers"] == [1, -2, 3]
    assert file.metadata["nested"] == [[1, 2], [3]]
    assert file.raw("t").view(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.tensors["t"].start % 64 == 0


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.03, 0.2, 0.5, 0.99, 0.9999])
def test_a_truncated_file_is_named(tiny, tmp_path, share):
    cut = tmp_path / "cut.gguf"
    content = tiny.read_bytes()
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf (is truncated|is not a GGUF file|is empty)") as raised:
        GgufFile(cut)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 and more", "is not a GGUF file: it starts with"),
        (b"GGUF" + struct.pack("<I", 1), "is GGUF version 1; versions 2 and 3"),
        (b"GGUF" + struct.pack(">I", 3), "is GGUF version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "unknown value type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**61), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sIQ2s", 3, 0, 1, 1, b"k", 8, 2, b"\xff\xfe"), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 9), "tensor 't' has 9 dimensions"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 999, 0), "tensor 't' has the unknown type 999"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 33, 8, 0), "does not fit Q8_0 blocks"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 0, 0), "is truncated: tensor 't' ends"),
        (b"GGUF" + struct.pack("<IQQQ1sIQQIQ", 3, 1, 0, 1, b"t", 2, 0, 2**40, 0, 0), "tensor 't' .* is empty"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 1, 0, 0) * 2 + bytes(64),
            "tensor twice",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, message):
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as raised:
        GgufFile(file)
    assert str(file) in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"cannot read .*none\.gguf: No such file"):
        GgufFile(tmp_path / "none.gguf")


def test_a_vocabulary_that_was_forgotten_is_gone_and_tensors_are_there(tiny):
    file = GgufFile(tiny)
    before = {name: file.raw(name).copy() for name in file.tensors}
    assert file.metadata["tokenizer.ggml.tokens"]

    file.forget_metadata("tokenizer.")

    assert not [key for key in file.metadata if key.startswith("tokenizer.")]
    assert file.metadata["general.architecture"]
    assert all(np.array_equal(file.raw(name), stored) for name, stored in before.items())
