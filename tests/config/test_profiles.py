"""Profiles: where they are found, what they bring, and what is said of a damaged one."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.search_path import search_path
from tests.config.user_files import refusal, write, write_profile


def test_profiles_are_off_on_demand_and_in_studies(folder: Path) -> None:
    write_profile(folder, "kunlun", "qwen32b")
    words = ["chip=kunlun", "model=qwen32b"]
    assert compose("bench", words).config.runtime.chunked_prefill_size == 1024
    for command, extra in (("serve", ["profiles=none"]), ("tune", [])):
        composed = compose(command, [*words, *extra])
        assert composed.config.runtime.chunked_prefill_size == 3072
        assert composed.profile_path is None
        assert composed.choices["profiles"] == "none"
    assert compose("tune", [*words, "profiles=kunlun/qwen32b"]).config.runtime.chunked_prefill_size == 1024


def test_a_profile_of_another_chip_can_be_named(folder: Path) -> None:
    profile = write_profile(folder, "kunlun", "qwen7b")
    composed = compose("serve", ["chip=h100", "model=qwen32b", "profiles=kunlun/qwen7b"])
    assert composed.profile_path == profile


def test_a_profile_brings_its_provenance(folder: Path) -> None:
    write_profile(folder, "cpu", "qwen7b", "runtime: {page_size: 32}\nprofile: {kind: simulated, chip: {name: cpu}}\n")
    record = compose("serve", ["model=qwen7b"]).config.profile
    assert record is not None
    assert (record.kind, record.chip.name, record.schema_version) == ("simulated", "cpu", 1)


def test_only_profiles_are_read_from_the_current_directory(folder: Path) -> None:
    write(folder / "chip" / "cpu.yaml", "# @package _global_\nchip: {name: hijacked}\n")
    write(folder / "chip" / "stray.yaml", "name: stray\n")
    write(folder / "serve.yaml", "what: ever\n")
    write_profile(folder, "h100", "qwen7b")
    assert compose("serve").config.chip.name == "cpu"
    assert "stray" not in search_path().options("chip")
    assert "is unknown" in refusal("serve", "chip=stray")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("server: {port: 1}\n", "a profile may hold `runtime` and `profile` only"),
        ("runtime: {chunked_prefil_size: 1}\n", "did you mean 'runtime.chunked_prefill_size'"),
        ("runtime: {chunked_prefill_size: many}\n", "runtime.chunked_prefill_size=many in "),
        ("runtime: [broken\n", "qwen7b.yaml"),
        ("runtime: {mem_fraction_static: 1.5}\n", "is not in (0, 1]"),
    ],
)
def test_a_damaged_profile_is_named(folder: Path, text: str, part: str) -> None:
    write_profile(folder, "cpu", "qwen7b", text)
    assert part in refusal("serve", "model=qwen7b")


def test_what_stands_in_the_place_of_a_profile_and_is_none_is_named(folder: Path) -> None:
    profile = folder / "profiles" / "kunlun" / "qwen7b.yaml"
    profile.mkdir(parents=True)
    words = ("chip=kunlun", "model=qwen7b")
    assert refusal("serve", *words) == f"profile '{profile}' is not a file; repair or remove it, or write profiles=none"
    profile.rmdir()
    profile.symlink_to("moved.yaml")
    assert f"profile '{profile}' is a link to nothing" in refusal("serve", *words)
    assert compose("serve", [*words, "profiles=none"]).profile_path is None
    write_profile(folder, "kunlun", "moved")
    assert compose("serve", [*words]).profile_path == profile


def test_a_profile_is_looked_for_under_the_names_in_force(folder: Path) -> None:
    profile = write_profile(folder, "my_chip", "mine")
    for words in (["model=/data/m", "model.name=mine"], ["model.name=mine", "model=qwen7b"]):
        composed = compose("serve", [*words, "chip=kunlun", "chip.name='my chip'"])
        assert (composed.config.model.name, composed.profile_path) == ("mine", profile)
    assert compose("serve", ["profiles=none", "model=/data/mine", "chip.name='my chip'"]).profile_path is None


def test_a_rule_names_the_files_that_break_it(folder: Path) -> None:
    profile = write_profile(folder, "cpu", "smollm2", "runtime: {page_size: 7}\n")
    message = refusal("serve")
    assert f"(runtime.chunked_prefill_size is from chip cpu, runtime.page_size is from profile {profile})" in message
    assert "is from" not in refusal("serve", "runtime.page_size=7", "runtime.chunked_prefill_size=64")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("runtime: 3", "runtime=3 in {} is not a mapping"),
        ("runtime: fast", "runtime=fast in {} is not a mapping"),
        ("runtime: [1]", "runtime=[1] in {} is not a mapping"),
        ("runtime:", "runtime=null in {} is not a mapping"),
        ("profile: {model: 3}", "profile.model=3 in {} is not a mapping"),
    ],
)
def test_a_node_that_is_no_mapping_is_named_with_its_file(folder: Path, text: str, part: str) -> None:
    profile = write_profile(folder, "cpu", "smollm2", f"{text}\n")
    assert refusal("serve") == part.format(profile)
