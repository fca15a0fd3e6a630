"""Composition: every shipped choice, order of strength, missing values, types and the environment."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from sglk.config.bench_schema import BenchConfig
from sglk.config.catalogue import chips
from sglk.config.check import check
from sglk.config.check_bench import FROM_FILES
from sglk.config.compose import compose
from sglk.config.home import expanded
from sglk.config.quoting import quoted
from sglk.config.schema import GroupConfig, ServeConfig
from sglk.config.search_path import search_path
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError


def refusal(command: str, *words: str, config_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(command, words, config_dir)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def write_profile(folder: Path, chip: str, model: str, text: str = "runtime:\n  chunked_prefill_size: 1024\n") -> Path:
    return write(folder / "profiles" / chip / f"{model}.yaml", f"# @package _global_\n{text}")


CHIPS = search_path().options("chip")
MODELS = search_path().options("model")
PAIRS = list(itertools.product(CHIPS, MODELS))
DIAGONAL = [(CHIPS[i % len(CHIPS)], MODELS[i % len(MODELS)]) for i in range(max(len(CHIPS), len(MODELS)))]


def composed(chip: str, model: str) -> ServeConfig:
    config = compose("serve", [f"chip={chip}", f"model={model}", "profiles=none"]).config
    assert (config.chip.name, config.model.name) == (chip, model)
    assert config.backend.name == config.chip.backend
    assert config.groups == [GroupConfig("group0", [f"{config.chip.backend}:0"])]
    return config


def test_every_chip_fits_every_model() -> None:
    configs = [composed(chip, model) for chip, model in DIAGONAL]
    for on_chip, of_model in itertools.product(configs, configs):
        check(replace(on_chip, model=of_model.model))


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "model"), PAIRS)
def test_every_chip_composes_with_every_model(chip: str, model: str) -> None:
    composed(chip, model)


@pytest.mark.parametrize("group", ["workload", "objective", "search"])
def test_every_workload_objective_and_search_composes(group: str) -> None:
    for option in search_path().options(group):
        given = [f"{group}={option}", "search.space.runtime.page_size=[16,32]"]
        given += [f"workload.file={__file__}"] if option in FROM_FILES else []
        assert getattr(compose("tune", given).config, group).name == option


def test_a_custom_search_has_the_dimensions_that_it_is_given() -> None:
    window = "search.space.runtime.max_running_requests=[4,8]"
    assert compose("tune", ["search=custom", window]).config.search.space == {"runtime.max_running_requests": [4, 8]}
    with pytest.raises(ConfigError, match=r"search\.space is empty"):
        compose("tune", ["search=custom"])


def test_each_command_has_its_own_root() -> None:
    assert type(compose("serve").config) is ServeConfig
    assert type(compose("bench").config) is BenchConfig
    assert type(compose("tune").config) is TuneConfig


def test_every_figure_of_a_chip_has_a_source() -> None:
    for option, chip in ((entry.config.name, entry.config) for entry in chips().entries):
        for name in ("memory_gib", "bandwidth_gb_s", "interconnect_gb_s", "peak_tflops"):
            if getattr(chip, name):
                assert chip.figures[name].source, (option, name)
                assert chip.figures[name].quality in ("datasheet", "measured", "derived", "claimed", "unverified")


def test_values_come_from_the_strongest_place(folder: Path) -> None:
    profile = write_profile(folder, "kunlun", "qwen32b", "runtime: {chunked_prefill_size: 2048, radix_min_len: 64}\n")
    composed = compose("serve", ["chip=kunlun", "model=qwen32b", "runtime.radix_min_len=128"])
    runtime = composed.config.runtime
    values = (runtime.radix_min_len, runtime.chunked_prefill_size, runtime.mem_fraction_static, runtime.page_size)
    assert values == (128, 2048, 0.75, 128)
    assert composed.sources["runtime.radix_min_len"] == "command line"
    assert composed.sources["runtime.chunked_prefill_size"] == f"profile {profile}"
    assert composed.sources["runtime.mem_fraction_static"] == "chip kunlun"
    assert (runtime.tp_size, composed.sources["runtime.tp_size"]) == (None, "runtime default")
    assert composed.sources["runtime.enable_torch_compile"] == "default"
    assert composed.profile_path == profile
    assert composed.choices["profiles"] == "kunlun/qwen32b"


def test_the_order_of_words_does_not_weaken_the_command_line(folder: Path) -> None:
    write_profile(folder, "kunlun", "qwen32b")
    composed = compose("serve", ["runtime={chunked_prefill_size: 4096}", "model=qwen32b", "chip=kunlun"])
    assert composed.config.runtime.chunked_prefill_size == 4096
    assert composed.sources["runtime.chunked_prefill_size"] == "command line"


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


def test_a_model_may_be_a_path(folder: Path) -> None:
    profile = write_profile(folder, "cpu", "My_Model_1_")
    composed = compose("serve", ["model='/data/a=b/My Model (1)'"])
    model = composed.config.model
    assert (model.path, model.name, model.hub_id) == ("/data/a=b/My Model (1)", "My Model (1)", None)
    assert composed.profile_path == profile
    assert compose("serve", ["model=tiny.gguf"]).config.model.path == "tiny.gguf"
    assert compose("tune", ["model=/data/m"]).config.model.name == "m"


def test_a_model_may_be_a_hub_name_unless_it_exists_here(folder: Path) -> None:
    model = compose("serve", ["model=Qwen/Qwen2.5-7B-Instruct"]).config.model
    assert (model.hub_id, model.path, model.name) == ("Qwen/Qwen2.5-7B-Instruct", None, "Qwen2.5-7B-Instruct")
    (folder / "Qwen" / "Qwen2.5-7B-Instruct").mkdir(parents=True)
    model = compose("serve", ["model=Qwen/Qwen2.5-7B-Instruct"]).config.model
    assert (model.hub_id, model.path) == (None, "Qwen/Qwen2.5-7B-Instruct")
    assert "./Qwen" in refusal("serve", "model=Qwen")


@pytest.mark.parametrize("name", ["~tilde", "~root", "${model}", "a\\\\${b}"])
def test_a_folder_may_have_an_odd_name(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    model = compose("serve", [quoted("model", f"./{name}")]).config.model
    assert model.path is not None
    assert (expanded(model.path).resolve(), model.name) == ((folder / name).resolve(), name)


def test_only_a_leading_tilde_is_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert compose("serve", ["model='~/m'"]).config.model.path == str(folder / "m")
    assert compose("serve", ["model='~no.such.user/m'"]).config.model.name == "m"
    assert "is not a folder" in refusal("serve", config_dir=Path("~no.such.user"))


def test_a_path_may_hold_an_interpolation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_TEST_MODELS", "/data")
    model = compose("serve", ["model='${oc.env:SGLK_TEST_MODELS}/m'"]).config.model
    assert (model.path, model.name) == ("/data/m", "m")


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


def test_a_chip_is_named_as_its_file(folder: Path) -> None:
    write(folder / "chip" / "mine.yaml", "# @package _global_\ndefaults: [kunlun]\n")
    assert "says chip.name=kunlun; give both one name" in refusal("serve", "chip=mine", config_dir=folder)


def test_a_config_dir_adds_and_replaces(folder: Path) -> None:
    conf = folder / "my conf"
    write(
        conf / "chip" / "mine.yaml",
        "# @package _global_\ndefaults: [kunlun]\nchip: {name: mine}\nruntime: {page_size: 128, radix_min_len: 64}\n",
    )
    write(conf / "runtime" / "default.yaml", "tp_size: 2\n")
    composed = compose("serve", ["chip=mine", "model=qwen32b"], conf)
    assert (composed.config.chip.name, composed.config.chip.memory_gib) == ("mine", 32)
    assert composed.config.groups == [GroupConfig("group0", ["kunlun:0", "kunlun:1"])]
    assert composed.sources["runtime.radix_min_len"] == "chip mine"
    assert composed.sources["runtime.chunked_prefill_size"] == "chip kunlun"
    assert "is not a folder" in refusal("serve", config_dir=folder / "none")


def test_all_missing_values_are_listed_at_once(folder: Path) -> None:
    conf = folder / "conf"
    write(conf / "chip" / "mine.yaml", "# @package _global_\nchip: {name: mine, vendor: '${model.hub_id}'}\n")
    write(conf / "model" / "bare.yaml", "hub_id: ???\n")
    message = refusal("serve", "chip=mine", "model=bare", config_dir=conf)
    assert message.startswith("no value for chip.title, chip.backend, model.name, model.hub_id;")
    assert "chip.vendor" not in message


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


def test_composition_leaves_hydra_and_the_environment_alone(folder: Path) -> None:
    before = dict(os.environ)
    compose("serve")
    assert not GlobalHydra.instance().is_initialized()
    assert dict(os.environ) == before
    assert list(folder.iterdir()) == []


def test_files_that_speak_of_hydra_are_composed_by_its_rules(folder: Path) -> None:
    shipped = (search_path().roots[0] / "serve.yaml").read_text(encoding="utf-8")
    write(folder / "more" / "server" / "quiet.yaml", "log_level: error\n")
    hydra = f"hydra:\n  run: {{dir: elsewhere}}\n  searchpath: ['file://{folder}/more']\n"
    write(folder / "conf" / "serve.yaml", f"{shipped.replace('  - _self_', '  - server: quiet')}  - _self_\n{hydra}")
    assert compose("serve", (), folder / "conf").config.server.log_level == "error"
    write(folder / "conf" / "serve.yaml", f"{shipped}hydra:\n  rum: {{dir: elsewhere}}\n")
    assert "unknown key 'hydra.rum'" in refusal("serve", config_dir=folder / "conf")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"- a\n", "odd.yaml holds no mapping"),
        (b"chip:\n\tname: x\n", "odd.yaml"),
        (b"chip: {name: \xff\xfe}\n", "odd.yaml is not UTF-8 text"),
        (b"# @package a b c\nchip: {}\n", "odd.yaml: Too many components"),
        (b"# @package _global_\ndefaults: [nothere]\n", "'chip/nothere' does not exist; options: a100_40g,"),
        (b"# @package _global_\ndefaults: [kunlum]\n", "'chip/kunlum' does not exist; did you mean 'kunlun'?"),
        (b"# @package _global_\ndefaults: 3\n", "odd.yaml: Invalid defaults list, defaults must be a list (got int)"),
        (b"# @package _global_\nchip: 3\n", "chip=3 in "),
        (b"# @package _global_\ndefaults: [odd]\nchip: {name: x}\n", "in a circle"),
        (b"# @package _global_\nchip: {memry: 3}\n", "odd.yaml; did you mean 'chip.memory_gib'?"),
        (b"# @package _global_\nchip: {memory_gib: lots}\n", "odd.yaml is not a number or null"),
        (b"# @package _global_\nchip: {title: '${oc.env:'}\n", "the value of chip.title is not a sound interpolation"),
        (b"chip: {name: x}\n", "odd.yaml; a file with a `chip:` node of its own begins with `# @package _global_`"),
        (b"", "no value for chip.name, chip.title, chip.vendor, chip.backend"),
    ],
)
def test_a_damaged_file_of_the_user_is_named(folder: Path, content: bytes, part: str) -> None:
    (folder / "chip").mkdir()
    (folder / "chip" / "odd.yaml").write_bytes(content)
    assert part in refusal("serve", "chip=odd", config_dir=folder)


@pytest.mark.parametrize("command", ["serve", "bench"])
def test_a_file_in_place_of_a_command_has_its_whole_defaults_list(folder: Path, command: str) -> None:
    file = write(folder / f"{command}.yaml", "server: {port: 1}\n")
    message = refusal(command, config_dir=folder)
    assert message.startswith(f"{file} replaces sglk's own {command}.yaml")
    assert f"lacks sglk_{command}, chip, model" in message
    write(file, f"defaults: [sglk_{command}, runtime: default, chip: cpu, model: smollm2, backend: auto]\n")
    assert "lacks engine" in refusal(command, config_dir=folder)
    assert compose("tune", (), folder).config.server.port == 8000


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


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("deny: [rope]", "backend.deny=['rope'] in {} is not a mapping"),
        ("deny: {rope: [slow]}", "backend.deny.rope=['slow'] in {} is not a mapping"),
        ("environment: {A: [1]}", "backend.environment.A=[1] in {} is not text"),
        (
            "deny: {rope: {resaon: slow}}",
            "unknown key 'backend.deny.rope.resaon' in {}; did you mean 'backend.deny.rope.reason'?",
        ),
    ],
)
def test_an_entry_of_the_wrong_shape_is_named_with_its_file(folder: Path, text: str, part: str) -> None:
    file = write(folder / "backend" / "cpu.yaml", f"name: cpu\n{text}\n")
    assert refusal("serve", "backend=cpu", config_dir=folder) == part.format(file)


def test_device_groups_in_a_file_need_no_quotes_of_the_grammar(folder: Path) -> None:
    shipped = (search_path().roots[0] / "serve.yaml").read_text(encoding="utf-8")
    write(folder / "serve.yaml", f"{shipped}groups: cuda:0,kunlun:0;cuda:1\n")
    assert [group.devices for group in compose("serve", (), folder).config.groups] == [
        ["cuda:0", "kunlun:0"],
        ["cuda:1"],
    ]
