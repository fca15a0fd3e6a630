"""Values: their types, and those from the environment."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.search_path import search_path
from tests.config.user_files import refusal, write, write_profile


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("runtime.chunked_prefill_size=4096.0", "is not an integer; write 4096"),
        ("runtime.chunked_prefill_size=4e3", "is not an integer; write 4000"),
        ("runtime.chunked_prefill_size=null", "is not an integer"),
        ("runtime.chunked_prefill_size=[1]", "is not an integer"),
        ("runtime.mem_fraction_static=null", "is not a number"),
        ("runtime.mem_fraction_static=80%", "is not a number; write 0.8"),
        ("runtime.disable_radix_cache=maybe", "is not true or false"),
        ("runtime.max_total_tokens=many", "is not an integer or null"),
        ("server=3", "is not a mapping"),
    ],
)
def test_a_type_error_names_key_value_and_wanted_type(word: str, message: str) -> None:
    assert refusal("serve", word) == f"{word} {message}"


def test_a_number_in_a_file_is_no_truth_value(folder: Path) -> None:
    file = write_profile(folder, "cpu", "smollm2", "runtime:\n  disable_radix_cache: 2\n")
    assert refusal("serve") == f"runtime.disable_radix_cache=2 in {file} is not true or false"


def test_a_search_space_in_a_file_wants_lists(folder: Path) -> None:
    file = write(folder / "conf/search/mine.yaml", "name: mine\nspace:\n  runtime.page_size: 16\n")
    message = refusal("tune", "search=mine", config_dir=folder / "conf")
    assert message == f"search.space.runtime.page_size=16 in {file} is not a list (any value each)"


def test_null_is_a_value_where_the_schema_says_so() -> None:
    assert compose("serve", ["runtime.max_total_tokens=null"]).config.runtime.max_total_tokens is None


def test_values_from_the_environment_are_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = folder / "conf"
    shipped = (search_path().roots[0] / "serve.yaml").read_text(encoding="utf-8")
    write(conf / "serve.yaml", f"{shipped}server:\n  port: ${{oc.env:SGLK_TEST_PORT}}\n")
    monkeypatch.setenv("SGLK_TEST_PORT", "8123")
    assert compose("serve", (), conf).config.server.port == 8123
    monkeypatch.setenv("SGLK_TEST_PORT", "80a")
    message = "environment variable SGLK_TEST_PORT='80a' gives server.port, which wants an integer"
    assert refusal("serve", config_dir=conf) == message
    monkeypatch.delenv("SGLK_TEST_PORT")
    message = refusal("serve", config_dir=conf)
    assert message.startswith("environment variable SGLK_TEST_PORT is not set, and server.port")
    assert "${oc.env:SGLK_TEST_PORT,DEFAULT}" in message
    assert compose("serve", ["server.port=1"], conf).config.server.port == 1
