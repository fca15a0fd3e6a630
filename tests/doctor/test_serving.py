"""What a server needs of the system."""

import socket
from dataclasses import replace

import pytest

from sglk.commands.doctor import deployment
from sglk.doctor import serving
from sglk.doctor.device_memory import device_findings
from sglk.doctor.machine import Machine
from sglk.server.port import bind
from tests.doctor.deployments import typed
from tests.doctor.trees import Tree

GIB = 2**30


def test_a_port_that_is_taken_and_one_that_is_free(tree: Tree) -> None:
    machine = replace(tree.machine(), bind=bind)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        (finding,) = serving.check_port(machine, typed(f"server.port={port}"))
    assert finding.status == "fail"
    assert finding.why.startswith(f"server.port={port} is taken by process")
    assert finding.todo.startswith("choose another") or finding.todo.startswith("stop that process")
    (finding,) = serving.check_port(machine, typed(f"server.port={port}"))
    assert (finding.status, finding.why) == ("ok", f"port {port} of 127.0.0.1 is free")


def test_open_files_against_the_queue(tree: Tree) -> None:
    wanted = typed("server.max_queued_requests=4000", "runtime.max_running_requests=64")
    (finding,) = serving.check_open_files(replace(tree.machine(), max_open_files=1024), wanted)
    assert (finding.status, "4320 are needed" in finding.why) == ("warn", True)
    assert "ulimit -n 4320" in finding.todo
    for limit in (4320, -1):
        (finding,) = serving.check_open_files(replace(tree.machine(), max_open_files=limit), wanted)
        assert finding.status == "ok"


def with_space(tree: Tree, free: int) -> Machine:
    return replace(tree.machine(), disk_space=lambda path: (100 * GIB, free))


def test_shared_memory_matters_to_split_models_alone(tree: Tree) -> None:
    split, whole = typed("chip=h100", "model=qwen7b", "runtime.tp_size=2"), typed()
    assert list(serving.check_shared_memory(tree.machine(), whole)) == []
    (finding,) = serving.check_shared_memory(tree.machine(), split)
    assert finding.why == "there is no /dev/shm"
    (tree.root / "dev/shm").mkdir(parents=True)
    (finding,) = serving.check_shared_memory(with_space(tree, 64 << 20), split)
    assert (finding.status, "--shm-size" in finding.todo) == ("warn", True)
    (finding,) = serving.check_shared_memory(with_space(tree, 8 * GIB), split)
    assert finding.status == "ok"


@pytest.mark.parametrize(
    ("words", "free", "status", "part"),
    [
        (["model=qwen32b"], 10 * GIB, "fail", "takes about 61.0 GiB in"),
        (["model=qwen32b"], 90 * GIB, "ok", "which has 90.0 free"),
        (["model=qwen32b", "runtime.load_format=dummy"], 10 * GIB, "ok", "needs no files"),
        (["model=qwen72b", "chip=h100", "backend=sim", "runtime.tp_size=4"], 0, "ok", "backend=sim needs no files"),
        (["model=local"], 10 * GIB, "fail", "says nowhere where its files are"),
        (["model=local", "model.path=/nonexistent"], 10 * GIB, "fail", "model.path=/nonexistent is not here"),
        (
            ["model=local", "model.package=nobody-has-this:x.gguf"],
            10 * GIB,
            "fail",
            "'nobody-has-this' is not installed",
        ),
        (["model.package=nobody-has-this:x.gguf"], 10 * GIB, "fail", "'nobody-has-this' is not installed"),
    ],
)
def test_weights_on_disk(words: list[str], free: int, status: str, part: str, tree: Tree) -> None:
    wanted = typed(*words)
    machine = replace(with_space(tree, free), environment={"HF_HOME": str(tree.root / "hub")})
    (finding,) = serving.check_weights(machine, wanted)
    assert (finding.status, part in finding.why) == (status, True), finding


def test_weights_in_the_cache(tree: Tree) -> None:
    tree.write("cache/models--Qwen--Qwen2.5-32B-Instruct/snapshots/1/model.safetensors", "")
    machine = replace(with_space(tree, 0), environment={"HF_HUB_CACHE": str(tree.root / "cache")})
    (finding,) = serving.check_weights(machine, typed("model=qwen32b"))
    assert (finding.status, finding.why) == ("ok", f"Qwen/Qwen2.5-32B-Instruct is in {tree.root}/cache")


def test_the_working_folder(tree: Tree) -> None:
    assert {finding.status for finding in serving.check_working_folder(with_space(tree, 2 * GIB))} == {"ok"}
    full = list(serving.check_working_folder(with_space(tree, 0)))
    assert [finding.check for finding in full if finding.status == "warn"] == ["disk", "disk"]
    closed = replace(tree.machine(), obstacle=lambda path: f"no {path.name}")
    said = next(iter(serving.check_working_folder(closed))).why
    assert said == f"bench and tune cannot put their records into {tree.root}: no record.json"


def test_a_profile_that_is_doubtful(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(
        "profiles/cpu/qwen7b.yaml", "runtime: {page_size: 32}\nprofile: {chip: {name: h100}, expires: 2020-01-01}\n"
    )
    monkeypatch.chdir(tree.root)
    found = list(serving.check_profile(tree.machine(), deployment(["chip=cpu", "model=qwen7b"])))
    assert [finding.status for finding in found] == ["warn", "warn"]
    assert "was measured with chip 'h100', not 'cpu'" in found[0].why
    assert "expired on 2020-01-01" in found[1].why
    (none,) = serving.check_profile(tree.machine(), typed("chip=h100", "model=qwen7b"))
    assert (none.status, none.todo) == ("ok", "sglk tune chip=h100 model=qwen7b")


@pytest.mark.parametrize(
    ("words", "free_gib", "status", "part"),
    [
        (["runtime.tp_size=1"], 31, "fail", "take about 61.0, more than the 24.0 of runtime.mem_fraction_static=0.75"),
        (["runtime.tp_size=4"], 31, "ok", "31.0 of 32.0 GiB free"),
        (["runtime.tp_size=4"], 20, "warn", "less than runtime.mem_fraction_static=0.75 asks for"),
        (["runtime.tp_size=4"], 10, "fail", "the weights take about 15.3"),
        (["runtime.tp_size=4", "runtime.max_total_tokens=1024"], 20, "ok", "20.0 of 32.0"),
        (["runtime.tp_size=4", "runtime.device_memory_gib=16"], 31, "fail", "more than the 12.0 of"),
        (["runtime.tp_size=2", "runtime.quantization=w8a8_int8"], 31, "ok", "31.0 of 32.0"),
    ],
)
def test_the_model_against_the_device(words: list[str], free_gib: int, status: str, part: str) -> None:
    config = typed("chip=kunlun", "model=qwen32b", *words).config
    answer = {"total": 32 * GIB, "free": free_gib * GIB, "name": "XPU"}
    (finding,) = device_findings(config, "kunlun:0", answer)
    assert (finding.status, part in finding.why) == (status, True), finding


def test_a_profile_of_another_device() -> None:
    config = typed("chip=cpu", "model=smollm2").config
    assert config.profile is not None
    answer = {"total": 32 * GIB, "free": 31 * GIB, "name": "another processor"}
    doubt = list(device_findings(config, "cpu:0", answer))[-1]
    assert (doubt.check, "this device is 'another processor'" in doubt.why) == ("profile", True)
