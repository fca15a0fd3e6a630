"""An engine over several machines: a command for each, and the processes of those that answer no requests."""

import re
import sys
from pathlib import Path

import pytest

from sglk.child import ChildProcess
from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.fleet import ReplicaConfig, alone
from sglk.errors import RunError
from sglk.upstream import node
from sglk.upstream.node import run_node
from tests.processes import is_alive
from tests.upstream.stand_ins import path_with_stand_in

SPAN = ("chip=h100", "model=qwen32b", "engine.nnodes=2", "runtime.tp_size=8", "engine.dist_init_addr=10.0.0.7:20000")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["serve", *words, "--dry-run"]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_sglang_gets_a_command_for_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    for rank, line in enumerate(printed(capsys, *SPAN, "engine=sglang")):
        assert f"--tp-size 8 --nnodes 2 --node-rank {rank} --dist-init-addr 10.0.0.7:20000" in line
        assert "CUDA_VISIBLE_DEVICES=0,1,2,3 " in line
    assert rank == 1


def test_of_vllm_the_first_machine_answers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = printed(capsys, *SPAN, "engine=vllm")
    place = "--nnodes 2 --node-rank {} --master-addr 10.0.0.7 --master-port 20000"
    assert place.format(0) in first
    assert "api_server" in first
    assert "--headless" not in first
    assert place.format(1) in second
    assert "-m vllm.entrypoints.cli.main serve --model" in second
    assert "--headless" in second


def test_ray_starts_the_other_machines_itself(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in SPAN if not word.startswith("engine.dist")]
    (line,) = printed(capsys, *words, "engine=vllm", "engine.executor=ray")
    assert "--tensor-parallel-size 8 --distributed-executor-backend ray" in line
    assert "--nnodes" not in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("engine.node_rank=2",), "engine.node_rank=2 is not one of engine.nnodes=2 machines; write 0 to 1"),
        (("engine.nnodes=3",), "runtime.tp_size=8 is not a multiple of engine.nnodes=3"),
        (("engine.nnodes=0",), "engine.nnodes=0 "),
        (("engine.dist_init_addr=null",), "write engine.dist_init_addr=HOST:PORT, the same on all machines"),
        (("engine.dist_init_addr=10.0.0.7",), "is not an address; write HOST:PORT"),
        (("engine.dist_init_addr=10.0.0.7:70000",), "is not an address; write HOST:PORT"),
        (("runtime.tp_size=null",), "needs runtime.tp_size, the devices of all machines together"),
        (("groups='cuda:0,cuda:1;cuda:2,cuda:3'",), "is one replica over all machines, groups are several"),
        (("groups='cuda:4,cuda:5,cuda:6,cuda:7,cuda:0,cuda:1,cuda:2,cuda:3'",), "first 4 devices of every machine"),
        (("engine.executor=ray",), "engine.executor=ray has no equivalent in sglang"),
        (("engine=vllm", "engine.executor=ray"), "engine.dist_init_addr=10.0.0.7:20000 has no effect with"),
        (
            ("engine=vllm", "engine.executor=ray", "engine.dist_init_addr=null", "engine.node_rank=1"),
            "on its head alone",
        ),
        (("engine.nnodes=1",), "has no effect on one machine"),
        (("engine.extra_args.nnodes=2",), "write engine.nnodes in its place"),
        (("engine=native", "engine.version=null"), "engine.nnodes=2 has no effect with engine=native"),
    ],
)
def test_what_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    engine = () if words[0].startswith("engine=") else ("engine=sglang",)
    assert told in refusal(capsys, "serve", *SPAN, *engine, *words, "--dry-run")


def test_nothing_but_serving_spans_machines(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("bench", "tune"):
        told = refusal(capsys, command, *SPAN, "engine=sglang")
        assert "the other machines are not started for a measurement; serve it, and write bench.url" in told
    for target in ("kubernetes", "helm-values", "compose", "nginx"):
        told = refusal(capsys, "render", f"target={target}", *SPAN, "engine=sglang")
        assert "write target=shell or target=systemd for each engine.node_rank" in told


def test_a_script_is_rendered_for_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        assert main(["render", "target=shell", *SPAN, "engine=sglang", f"engine.node_rank={rank}"]) == 0
        script = capsys.readouterr().out
        assert f"engine.node_rank={rank}" in script
        assert "engine.nnodes=2" in script


def second_machine(tmp_path: Path) -> list[str]:
    return [
        "engine=sglang",
        "model.package=null",
        "model.hub_id=org/m",
        f"engine.logs={tmp_path}",
        "profiles=none",
        "engine.nnodes=3",
        "engine.node_rank=1",
        "engine.dist_init_addr=127.0.0.1:20000",
        "runtime.tp_size=3",
        "groups='cpu:0,cpu:1,cpu:2'",
    ]


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplicaConfig:
    monkeypatch.setenv("PYTHONPATH", path_with_stand_in())
    monkeypatch.setenv("STAND_IN_START", "exit")
    return alone(compose("serve", second_machine(tmp_path)).config)[0]


def test_the_second_machine_serves_no_port_and_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    environment = {"PYTHONPATH": path_with_stand_in(), "STAND_IN_PIDS": str(pids)}
    command = [sys.executable, "-m", "sglk", "serve", *second_machine(tmp_path)]
    with ChildProcess(command, log=tmp_path / "serve.log", label="the machine", env=environment) as child:
        child.wait_for_line(re.compile("machine 1 of 3: requests are answered at machine 0"), timeout_s=60)
        child.wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3, timeout_s=60)
        started = [int(pid) for pid in pids.read_text().split()[:2]]
        assert all(map(is_alive, started))
        child.stop()
    assert not any(map(is_alive, started))
    log = (tmp_path / "serve.log").read_text()
    assert "--nnodes 3 --node-rank 1 --dist-init-addr 127.0.0.1:20000" in log
    assert "SGLK_READY" not in log


def test_one_that_ends_at_its_start_is_told_with_its_last_words(replica: ReplicaConfig) -> None:
    with pytest.raises(RunError, match=r"on machine 1 exited with code 1: .*3 GiB are not there"):
        run_node(replica)


def test_one_that_has_run_joins_again_with_a_growing_pause(
    replica: ReplicaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        # From the first one on it ends at once.
        monkeypatch.setattr(node, "STEADY_S", 1e9)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(node, "STEADY_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run_node(replica, pause)
    assert pauses == [2.0, 4.0, 8.0]
