"""Rendered files, read as what reads them does."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs

CHART = Path(__file__).parents[3] / "deploy/helm/sglk"
TOOLS = Path(__file__).parents[3] / ".upstream/tools/bin"
TWO_GROUPS = (
    "groups=[{name: gpu, devices: ['cuda:0','cuda:1'], chip: h100, weight: 80, tp_size: 2},"
    "{name: kl, devices: ['kunlun:2','kunlun:3'], chip: kunlun, weight: 20, tp_size: 2, runtime: {quantization: w8a8}},"
    "{name: far, url: 'http://10.0.0.7:8000', weight: 0, standby: true}]"
)

SERVE_WITH_KEY = """\
defaults:
  - sglk_serve
  - runtime: default
  - chip: cpu
  - model: smollm2
  - backend: auto
  - engine: native
  - _self_
server: {api_key: in-a-file}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("SGLK_API_KEY", "SGLK_ADMIN_API_KEY"):
        monkeypatch.delenv(key, raising=False)


def render(capsys: pytest.CaptureFixture[str], target: str, *words: str) -> str:
    code = main(["render", f"target={target}", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["render", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def objects(text: str) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}


def container(workload: Any) -> Any:
    return workload["spec"]["template"]["spec"]["containers"][0]


def command_of(script: str) -> list[str]:
    return shlex.split(script[script.index("exec ") :].replace("\\\n", ""))


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=f"/usr/sbin:{TOOLS}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_a_script_serves_what_was_planned(capsys: pytest.CaptureFixture[str]) -> None:
    text = render(capsys, "shell", "chip=kunlun", "model=qwen32b", "runtime.quantization=w8a8")
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    command = command_of(text)
    # What was chosen here is the same where the script runs.
    assert command[:3] == ["exec", "sglk", "serve"]
    assert "runtime.tp_size=2" in command
    assert compose("serve", command[3:]).config.runtime.tp_size == 2


def test_a_script_keeps_hard_words_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "server.served_model_name='it''s \"$HOME\" `x`'".replace("''", "\\'")
    text = render(capsys, "shell", name)
    command = command_of(text)
    assert name in command


@pytest.mark.slow
def test_no_file_carries_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_API_KEY", "from-the-environment")
    for target in ("shell", "systemd", "compose", "kubernetes", "helm-values", "nginx"):
        text = render(capsys, target, "server.admin_api_key=typed-one", "render.executable=/usr/bin/sglk")
        assert "typed-one" not in text
        assert "from-the-environment" not in text
        if target != "nginx":
            assert "SGLK_API_KEY" in text
            assert "SGLK_ADMIN_API_KEY" in text


def test_keys_stay_out_however_they_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    text = render(capsys, "shell", "server={api_key: typed-one, port: 8123}")
    assert "typed-one" not in text
    assert "SGLK_API_KEY" in text
    assert "'server={port:8123}'" in text
    for word in ("backend.environment.HF_TOKEN=abc", "groups=[{name: a, url: 'http://me:abc@h:1'}]"):
        told = refused(capsys, "target=kubernetes", "chip=h100", "model=qwen7b", word)
        assert "abc" not in told
    Path("own").mkdir()
    Path("own/serve.yaml").write_text(SERVE_WITH_KEY)
    assert "own/serve.yaml holds a secret" in refused(capsys, "target=kubernetes", "--config-dir", "own")


def test_no_value_ends_a_line_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hard = "server.served_model_name='a\ntouch pwned; 100% $(HOME) $$x'"
    words = ("engine=sglang", "chip=h100", "model=qwen7b", "render.executable=/bin/sh", hard)
    script = render(capsys, "shell", *words).replace("exec /bin/sh", "echo")
    said = subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert hard in said
    assert not (tmp_path / "pwned").exists()
    unit = render(capsys, "systemd", *words)
    assert sum(line.startswith("ExecStart=") for line in unit.splitlines()) == 1
    assert "a\\ntouch pwned; 100%% $$(HOME) $$$$x" in unit
    # Kubernetes reads `$$` as `$`, also where nothing follows that it knows.
    text = render(capsys, "kubernetes", *words)
    assert any(line.startswith("# qwen7b starts: ") and "a\\ntouch pwned" in line for line in text.splitlines())
    args = container(objects(text)["Deployment", "qwen7b"])["args"]
    assert hard in [word.replace("$$", "$") for word in args]


def test_docker_compose_reads_what_was_meant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    compose_tool = tool("docker-compose")
    name = "server.served_model_name='a $HOME \"q\" ü 50% $$x'"
    for words in (
        ("chip=kunlun", "model=qwen32b", "runtime.quantization=w8a8"),
        ("chip=h100", "model=qwen7b", "groups='cuda:2,cuda:3'", "model.path=/models/q", "server.api_key=k"),
        ("profiles=none",),
    ):
        (tmp_path / "compose.yaml").write_text(render(capsys, "compose", name, *words))
        command = [compose_tool, "-f", str(tmp_path / "compose.yaml"), "config", "--format", "json", "--no-interpolate"]
        subprocess.run(command, check=True, capture_output=True)
        command.remove("--no-interpolate")
        keyed = {**os.environ, "SGLK_API_KEY": "k"}
        read = json.loads(subprocess.run(command, env=keyed, check=True, capture_output=True).stdout)
        (service,) = read["services"].values()
        # It writes a `$` as it wants to read it again.
        assert name in [word.replace("$$", "$") for word in service["command"]]
        assert service["shm_size"] == str(8 * 2**30)


def test_each_group_is_a_workload_with_its_own_devices(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(render(capsys, "kubernetes", "chip=h100", "model=qwen32b", TWO_GROUPS))
    limits = {name: container(each).get("resources") for (kind, name), each in found.items() if kind == "Deployment"}
    assert limits == {
        "qwen32b-gpu": {"limits": {"nvidia.com/gpu": 2}},
        "qwen32b-kl": {"limits": {"kunlunxin.com/xpu": 2}},
        "qwen32b": None,
    }
    words = container(found["Deployment", "qwen32b-kl"])["args"]
    (replica,) = replica_configs(compose("serve", words[1:]))
    assert replica.config.chip.name == "kunlun"
    assert replica.config.runtime.quantization == "w8a8"
    assert replica.config.groups[0].devices == ["kunlun:0", "kunlun:1"]  # a pod counts its own from 0


def test_a_gateway_splits_the_traffic_by_an_editable_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(render(capsys, "kubernetes", "chip=h100", "model=qwen32b", TWO_GROUPS))
    assert yaml.safe_load(found["ConfigMap", "qwen32b-weights"]["data"]["weights.yaml"]) == {
        "gpu": 80.0,
        "kl": 20.0,
        "far": 0.0,
    }
    words = container(found["Deployment", "qwen32b"])["args"]
    config = compose("serve", words[1:]).config
    assert [group.url for group in config.groups] == [
        "http://qwen32b-gpu:8000",
        "http://qwen32b-kl:8000",
        "http://10.0.0.7:8000",
    ]
    assert config.groups[2].standby
    assert config.router.weights_file == "/etc/sglk-gateway/weights/weights.yaml"
    for group in ("qwen32b-gpu", "qwen32b-kl"):
        service = found["Service", group]["spec"]
        labels = found["Deployment", group]["spec"]["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()


def test_a_gateway_knows_the_key_of_its_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLK_API_KEY", "k")
    found = objects(render(capsys, "kubernetes", "chip=h100", "model=qwen32b", TWO_GROUPS))
    pod = found["Deployment", "qwen32b"]["spec"]["template"]["spec"]
    (mount,) = [each for each in container(found["Deployment", "qwen32b"])["volumeMounts"] if each["name"] == "keys"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "keys"]
    groups = compose("serve", container(found["Deployment", "qwen32b"])["args"][1:]).config.groups
    assert groups[0].api_key_file == f"{mount['mountPath']}/SGLK_API_KEY"
    assert groups[2].api_key_file is None  # a server elsewhere is not of this secret
    assert volume["secret"]["secretName"] == "qwen32b-keys"


def test_a_tuned_profile_and_files_of_the_user_travel_along(capsys: pytest.CaptureFixture[str]) -> None:
    Path("profiles/l20").mkdir(parents=True)
    Path("profiles/l20/mine.yaml").write_text("# @package _global_\nruntime: {chunked_prefill_size: 4096}\n")
    Path("own/model").mkdir(parents=True)
    model = "name: mine\nhub_id: org/mine\n"
    Path("own/model/mine.yaml").write_text(model)
    words = ("chip=l20", "model=mine", "--config-dir", "own")
    found = objects(render(capsys, "kubernetes", *words))
    pod = found["Deployment", "mine"]["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "config"]
    data = found["ConfigMap", "mine-config"]["data"]
    placed = {item["path"]: data[item["key"]] for item in volume["configMap"]["items"]}
    assert placed["conf/model/mine.yaml"] == model
    assert "chunked_prefill_size: 4096" in placed["profiles/l20/mine.yaml"]
    # In the pod's working directory the same words compose the same deployment.
    for path, text in placed.items():
        file = Path("pod") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    os.chdir("pod")
    args = container(found["Deployment", "mine"])["args"]
    assert args[:3] == ["serve", "--config-dir", "conf"]
    assert compose("serve", args[3:], "conf").config.runtime.chunked_prefill_size == 4096


def test_a_gateway_finds_the_model_that_a_file_of_the_user_describes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own/model").mkdir(parents=True)
    Path("own/model/mine.yaml").write_text("name: mine\nhub_id: org/mine\n")
    words = ("chip=h100", "model=mine", "--config-dir", "own", "groups='cuda:0;cuda:1'", "runtime.tp_size=1")
    found = objects(render(capsys, "kubernetes", *words))
    gateway = found["Deployment", "mine"]
    (mount,) = [each for each in container(gateway)["volumeMounts"] if each["name"] == "config"]
    assert mount["mountPath"] == container(gateway)["workingDir"]
    args = container(gateway)["args"]
    assert args[:3] == ["serve", "--config-dir", "conf"]
    assert compose("serve", args[3:], "own").config.model.hub_id == "org/mine"
    others = [each["mountPath"] for each in container(gateway)["volumeMounts"] if each["name"] != "config"]
    assert not any(path.startswith(f"{mount['mountPath']}/") for path in others)


def test_an_upstream_engine_is_named_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = render(capsys, "kubernetes", "chip=h100", "model=qwen7b", "engine=sglang")
    assert "# qwen7b starts: " in text
    assert "-m sglang.launch_server" in text
    words = container(objects(text)["Deployment", "qwen7b"])["args"]
    assert compose("serve", words[1:]).config.engine.name == "sglang"


@pytest.mark.parametrize("target", ["shell", "systemd", "compose", "kubernetes", "helm-values"])
def test_nothing_is_said_of_the_python_that_renders(capsys: pytest.CaptureFixture[str], target: str) -> None:
    words = ("chip=h100", "model=qwen7b", "engine=sglang", "render.executable=/opt/sglk/bin/sglk")
    text = render(capsys, target, *words)
    assert sys.executable not in text
    if target != "helm-values":
        assert " python -m sglang.launch_server " in text
        assert " /opt/py -m sglang.launch_server " in render(capsys, target, *words, "engine.python=/opt/py")


def test_names_of_services_are_made_from_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert ("Service", "qwen0-5b") in objects(render(capsys, "kubernetes", "chip=h100", "model=qwen0_5b"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["target=docker"], "target=docker is not allowed; allowed: shell, systemd, compose, kubernetes"),
        ([], "target"),
        (["target=systemd"], "write render.executable="),
        (["target=shell", "server.port=0"], "write a port"),
        (["target=shell", "render.name=My_Model"], "render.name"),
        (["target=shell", "render.image='a b'"], "render.image"),
        (["target=shell", "render.shared_memory=8GB"], "such as 8Gi"),
        (["target=kubernetes", "render.replicas=0"], "render.replicas=0"),
        (["target=kubernetes", "model.path=./here"], "write the whole path"),
        (["target=kubernetes", "chip=mi300x", "backend.container.resource=null"], "backend.container.resource="),
        (
            [
                "target=kubernetes",
                "render.name=" + "a" * 40,
                f"groups=[{{name: {'b' * 30}, devices: ['cpu:0']}}, {{name: c, url: 'http://h:1'}}]",
            ],
            "more than 63 signs",
        ),
        (
            ["target=kubernetes", "groups=[{name: b_b, url: 'http://h:1'}, {name: b-b, url: 'http://h:2'}]"],
            "one service",
        ),
        (["target=nginx", "render.routes={other: [nowhere]}"], "host:port"),
        (["target=nginx", "render.routes={other: ['h:1=0']}"], "weight above 0"),
        (["target=nginx", "render.routes={other: ['h:1=nan']}"], "weight above 0"),
        (["target=nginx", "render.routes={other: ['h:1=x']}"], "host:port=weight"),
        (["target=nginx", "render.routes={other: []}"], "weight above 0"),
        (["target=nginx", "groups=[{name: a, url: 'https://h:1'}]"], "plain HTTP"),
        (["target=nginx", "groups=[{name: a, url: 'http://h:1'},{name: b, devices: ['cpu:0']}]"], "mixed"),
    ],
)
def test_what_cannot_be_rendered_says_so(capsys: pytest.CaptureFixture[str], words: Sequence[str], says: str) -> None:
    assert says in refused(capsys, *words)


def test_files_are_written_and_those_of_others_kept(capsys: pytest.CaptureFixture[str]) -> None:
    written = render(capsys, "compose", "profiles=none", "render.output=out").split()
    assert written == ["out/compose.yaml"]
    assert (
        render(capsys, "compose", "profiles=none", "render.output=out").split() == written
    )  # its own file is replaced
    Path("out/compose.yaml").write_text("services: {mine: {}}\n")
    assert "is not a file of sglk's" in refused(capsys, "target=compose", "profiles=none", "render.output=out")
    assert Path("out/compose.yaml").read_text() == "services: {mine: {}}\n"


def test_a_folder_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert "cannot write 'file/out/compose.yaml'" in refused(capsys, "target=compose", "render.output=file/out")


def test_compose_passes_the_devices_in(capsys: pytest.CaptureFixture[str]) -> None:
    kunlun = yaml.safe_load(render(capsys, "compose", "chip=kunlun", "model=qwen32b", "runtime.quantization=w8a8"))
    service = kunlun["services"]["qwen32b"]
    assert service["devices"] == ["/dev/xpu0:/dev/xpu0", "/dev/xpu1:/dev/xpu1", "/dev/xpuctrl:/dev/xpuctrl"]
    assert service["stop_grace_period"] == "45s"
    gpus = yaml.safe_load(render(capsys, "compose", "model=qwen7b", "chip=h100", "groups='cuda:2,cuda:3'"))
    (reserved,) = gpus["services"]["qwen7b"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "device_ids": ["2", "3"], "capabilities": ["gpu"]}


def test_kubernetes_takes_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for each in objects(render(capsys, "kubernetes", "chip=h100", "model=qwen32b", TWO_GROUPS)).values():
        validate.validate(each, "1.33", strict=True)


def test_the_chart_makes_the_same_objects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    helm = tool("helm")
    monkeypatch.setenv("SGLK_API_KEY", "k")
    Path("profiles/h100").mkdir(parents=True)
    Path("profiles/h100/qwen32b.yaml").write_text("# @package _global_\nruntime: {max_running_requests: 96}\n")
    words = ("chip=h100", "model=qwen32b", TWO_GROUPS, "model.path=/models/qwen", "render.namespace=llm")
    plain = objects(render(capsys, "kubernetes", *words))
    values = tmp_path / "values.yaml"
    values.write_text(render(capsys, "helm-values", *words))
    command = [helm, "template", "x", str(CHART), "--values", str(values), "--namespace", "llm"]
    made = objects(subprocess.run(command, check=True, text=True, capture_output=True).stdout)
    for each in (made, plain):
        data = each["ConfigMap", "qwen32b-weights"]["data"]
        data["weights.yaml"] = yaml.safe_load(data["weights.yaml"])
    assert made == plain


def test_systemd_reads_the_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    unit = tmp_path / "smollm2.service"
    name = "server.served_model_name='50% of $it'"
    unit.write_text(render(capsys, "systemd", name, "profiles=none", "render.executable=/bin/sh", "render.user=root"))
    result = subprocess.run([analyze, "verify", str(unit)], text=True, capture_output=True, check=False)
    told = [line for line in result.stderr.splitlines() if "smollm2" in line]
    assert told == []
    assert "\"server.served_model_name='50%% of $$it'\"" in unit.read_text()
