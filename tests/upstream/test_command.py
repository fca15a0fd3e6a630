"""From a deployment to the command of an upstream engine."""

import copy
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.config.groups import parse_groups
from sglk.config.schema import ServeConfig
from sglk.errors import ConfigError
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.compose import compose_command
from tests.upstream.stand_ins import path_with_stand_in


@cache
def deployment(engine: str, chip: str) -> ServeConfig:
    return compose("serve", [f"engine={engine}", f"chip={chip}", "model=qwen7b", "profiles=none"]).config


def command(engine: str, chip: str = "h100", *words: str, **given: Any) -> UpstreamCommand:
    """Compose for a deployment in which `words` (`runtime.page_size=32`) are changed."""
    config = copy.deepcopy(deployment(engine, chip))
    for word in words:
        node, _, text = word.partition("=")
        *path, name = node.split(".")
        owner: Any = config
        for step in path:
            owner = getattr(owner, step)
        if isinstance(owner, dict):
            owner[name] = yaml.safe_load(text)
        else:
            setattr(owner, name, text if name == "version" else yaml.safe_load(text))
    return compose_command(config, **given)


def value(made: UpstreamCommand, flag: str) -> str:
    return made.argv[made.argv.index(flag) + 1]


def test_runtime_parameters_have_sglangs_names() -> None:
    made = command("sglang", "h100", "runtime.chunked_prefill_size=4096", port=31000)
    assert made.argv[1:3] == ("-m", "sglang.launch_server")
    assert (value(made, "--chunked-prefill-size"), value(made, "--port")) == ("4096", "31000")
    assert value(made, "--model-path") == "Qwen/Qwen2.5-7B-Instruct"
    assert (made.version, made.url) == ("0.5.18", "http://127.0.0.1:31000")


@pytest.mark.parametrize(
    ("engine", "chip", "told"),
    [
        ("sglang", "cpu", r"sglang 0.5.18 does not serve with backend=cpu; choose a model of safetensors, such as"),
        (
            "sglang",
            "kunlun_p800",
            r"sglang 0.5.18 does not serve with backend=kunlun; choose a model of safetensors, such as",
        ),
        ("vllm", "h100", r"vllm 0.32.0 does not serve; choose a model of safetensors, such as"),
    ],
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_gguf_file_is_refused_before_an_engine_finds_out(
    engine: str, chip: str, told: str, is_folder: bool, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").touch()
    config = copy.deepcopy(deployment(engine, chip))
    config.model.path = str(tmp_path if is_folder else tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match=rf"is GGUF \(.*\), which {told}"):
        compose_command(config)
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigError, match=rf"is GGUF \(.*\), which {told}"):
        compose_command(config)
    if is_folder:
        config.runtime.load_format = "dummy"
        assert str(tmp_path) in compose_command(config).argv


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "original/consolidated.00.pth"])
def test_a_gguf_file_beside_other_weights_is_none_of_the_engines_business(weights: str, tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    for name in ("m.gguf", "config.json", weights):
        (tmp_path / name).touch()
    config = copy.deepcopy(deployment("sglang", "cpu"))
    config.model.path = str(tmp_path)
    assert value(compose_command(config), "--model-path") == str(tmp_path)


@pytest.mark.parametrize("chip", ["h100", "ascend_910b"])
def test_a_gguf_file_is_handed_to_sglang_where_it_has_kernels_for_it(chip: str, tmp_path: Path) -> None:
    config = copy.deepcopy(deployment("sglang", chip))
    config.model.path = str(tmp_path / "m.gguf")
    assert value(compose_command(config), "--model-path") == str(tmp_path / "m.gguf")


def test_runtime_parameters_have_vllms_names() -> None:
    words = ("runtime.disable_radix_cache=true", "runtime.page_size=32", "runtime.max_total_tokens=3200")
    made = command("vllm", "h100", *words, "runtime.disable_cuda_graph=true")
    assert (value(made, "--block-size"), value(made, "--num-gpu-blocks-override")) == ("32", "100")
    assert {"--no-enable-prefix-caching", "--enable-chunked-prefill", "--enforce-eager"} <= {*made.argv}
    assert any("--gpu-memory-utilization covers activations too" in note for note in made.notes)


def test_a_step_of_vllm_holds_a_token_of_each_running_request() -> None:
    words = ("runtime.chunked_prefill_size=32", "runtime.max_running_requests=64")
    made = command("vllm", "h100", *words)
    assert value(made, "--max-num-batched-tokens") == "64"
    assert any("chunked_prefill_size=32 is raised to 64" in note for note in made.notes)


def test_a_page_is_rounded_up_to_what_the_engine_takes_on_the_chip() -> None:
    made = command("vllm", "cpu", "runtime.page_size=48", "runtime.max_total_tokens=640")
    assert (value(made, "--block-size"), value(made, "--num-gpu-blocks-override")) == ("64", "10")
    assert any("page_size=48 becomes 64, which vllm 0.32.0 takes on this chip" in note for note in made.notes)
    assert value(command("sglang", "cpu"), "--page-size") == "1"


def test_a_chips_environment_and_flags_come_from_its_files() -> None:
    made = command("sglang", "kunlun", environ={"XPU_USE_FAST_SWIGLU": "0"})
    assert made.environment["SGLANG_PLATFORM"] == "kunlun"
    assert made.environment["XMLIR_ENABLE_FAST_FC"] == "1"
    assert "XPU_USE_FAST_SWIGLU" not in made.environment
    assert (value(made, "--attention-backend"), value(made, "--page-size")) == ("kunlun", "128")
    taken_away = command("sglang", "kunlun", "engine.extra_args.attention_backend=triton")
    assert value(taken_away, "--attention-backend") == "triton"


def test_a_crash_is_over_at_once_unless_its_dumps_are_wanted() -> None:
    switch = "SGLANG_CUDA_COREDUMP_BEFORE_CRASH"
    assert command("sglang").environment[switch] == "0"
    assert switch not in command("sglang", environ={switch: "1"}).environment


def test_each_replica_sees_its_own_devices() -> None:
    words = ["engine=sglang", "chip=h100", "model=qwen32b", "groups='cuda:0,cuda:1;cuda:2,cuda:3'", "runtime.tp_size=2"]
    made = [compose_command(each.config) for each in replica_configs(compose("serve", words))]
    assert [each.environment["CUDA_VISIBLE_DEVICES"] for each in made] == ["0,1", "2,3"]
    assert {value(each, "--tp-size") for each in made} == {"2"}


def test_devices_count_among_those_that_sglk_itself_sees() -> None:
    config = replace(deployment("sglang", "h100"), groups=parse_groups("cuda:1", "cuda"))
    made = compose_command(config, environ={"CUDA_VISIBLE_DEVICES": "4,GPU-abc"})
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    with pytest.raises(ConfigError, match=r"device 'cuda:1' is not there: \$CUDA_VISIBLE_DEVICES=4 shows 1"):
        compose_command(config, environ={"CUDA_VISIBLE_DEVICES": "4"})


def test_keys_are_in_the_environment_and_never_shown() -> None:
    made = command("vllm", "h100", key="wine-dark")
    assert made.secrets == {"VLLM_API_KEY": "wine-dark"}
    assert "wine-dark" not in f"{made.argv}{made.shell()}"
    assert "VLLM_API_KEY='***'" in made.shell()


@pytest.mark.parametrize(
    ("engine", "word", "told"),
    [
        ("sglang", "engine.extra_args.page_size=3", "write runtime.page_size in its place"),
        ("sglang", "engine.extra_args.max_num_seqs=3", "no flag --max-num-seqs; write runtime.max_running_requests"),
        ("sglang", "engine.extra_args.device_groups=x", "has no flag --device-groups; write groups"),
        ("sglang", "engine.extra_args.attention-backnd=x", "did you mean '--attention-backend'?"),
        ("sglang", "engine.extra_args.stream_interval=x", "'x' is not an integer"),
        ("sglang", "engine.extra_args.sampling_backend=tritn", "'tritn' is not allowed"),
        ("sglang", "engine.extra_args.cuda_graph_max_bs=8", "deprecated --cuda-graph-max-bs; write --cuda-graph-max"),
        ("sglang", "engine.extra_args.enable_hicache=true", "write --enable-hierarchical-cache"),
        ("sglang", "engine.extra_args.api_key=x", "write server.api_key in its place"),
        ("sglang", "engine.version=0.4", "no table of the flags of sglang 0.4; it has 0.5.18, 0.5.23"),
        ("sglang", "runtime.schedule_policy=shortest_prompt_first", "in sglang 0.5.18; choose one of fcfs, lpm"),
        ("sglang", "runtime.radix_min_len=256", "write runtime.radix_min_len=0"),
        ("sglang", "runtime.kv_cache_dtype=fp16", "runtime.kv_cache_dtype=fp16: sglang 0.5.18 has none of this kind"),
        ("vllm", "runtime.schedule_policy=lpm", "no equivalent in vllm 0.32.0"),
        ("vllm", "engine.extra_args.hf_token=abc", "--hf-token is a secret, and every user of the machine sees"),
        ("vllm", "runtime.quantization=w8a8_int8", "allowed: null, fp8"),
    ],
)
def test_what_the_version_has_not_is_refused_in_its_words(engine: str, word: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        command(engine, "h100", word)
    assert told in str(refused.value)


def test_a_flag_that_is_gone_is_named_anew() -> None:
    with pytest.raises(ConfigError, match=r"0.5.23 has no flag --cuda-graph-max-bs; write --cuda-graph-max-bs-decode"):
        command("sglang", "h100", "engine.version=0.5.23", "engine.extra_args.cuda_graph_max_bs=8")


def test_a_later_version_has_the_policy_for_short_prompts() -> None:
    words = ("engine.version=0.5.23", "runtime.schedule_policy=shortest_prompt_first")
    assert value(command("sglang", "h100", *words), "--schedule-policy") == ("shortest-prefill-first")


def test_a_dry_run_prints_what_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    assert main(["serve", "--dry-run", "engine=sglang", "chip=kunlun", "model=qwen7b"]) == 0
    assert signal.getsignal(signal.SIGINT) is handler
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("# group0/0: checked against the flags of sglang 0.5.18, which is not installed")
    assert "SGLANG_PLATFORM=kunlun" in line.split(" ")
    assert main(["serve", "--dry-run"]) == 2
    assert "choose engine=sglang or engine=vllm" in capsys.readouterr().err


def test_a_dry_run_takes_no_other_version_for_the_one_that_it_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with_stand_in())
    assert main(["serve", "--dry-run", "engine=sglang", "engine.version=0.5.23", "model=qwen7b", "profiles=none"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith("# group0/0: checked against the flags of sglang 0.5.23; ")
    assert head.endswith(" has 0.5.18, and this machine would refuse to start it")
