"""An engine over ranks in processes of their own: the same answers, failures in words, and nothing left behind."""

import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglk.config.compose import compose
from sglk.engine.batch import RunnerLost
from sglk.engine.engine import Engine
from sglk.engine.follower import Follower
from sglk.engine.messages import SamplingParams
from sglk.engine.parallel_runner import ParallelRunner
from sglk.errors import CapacityError, ConfigError, RequestError
from sglk.plugins import claims, register_backend
from sglk.testing.tiny import write_tiny_model
from tests.engine.receiving import ENDLESS, Receiver, submit
from tests.processes import is_alive
from tests.waiting import wait_until

PLUGIN = """
from pathlib import Path

from sglk.backends import reference
from sglk.backends.cpu import CpuBackend


class PanicException(BaseException):
    '''What a panic in Rust becomes.'''


ERRORS = {"": RuntimeError, "exit": SystemExit, "panic": PanicException}


class Backend(CpuBackend):
    '''The cpu, but an op fails on device 1 while a file is there, which says how, or returns NaN.'''

    api_version = 1

    def __init__(self, *, index, fault, **options):
        super().__init__(index=index, **options)

        def silu_and_mul(x_T2F):
            y_TF = reference.silu_and_mul.reference(x_T2F)
            if index == 1 and Path(fault).exists():
                how = Path(fault).read_text()
                if how != "nan":
                    raise ERRORS[how]("the op is broken")
                y_TF[-1] = float("nan")
            return y_TF

        self.ops.register(reference.silu_and_mul, "faulty", silu_and_mul)
"""

GREEDY = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    stem = rng.choices(range(256), k=50)
    return [stem, stem[:33] + rng.choices(range(256), k=9), [7], stem[:16]]


@contextmanager
def started(model: Path, *words: str, **runtime: Any) -> Iterator[Engine]:
    settings = {"num_threads": 2, "max_total_tokens": 512, "chunked_prefill_size": 16, **runtime}
    engine = Engine.from_config(
        compose(
            "serve", [f"model={model}", *words, *(f"runtime.{key}={value}" for key, value in settings.items())]
        ).config
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, rank 1 of `engine` fails."""
    return tmp_path_factory.mktemp("fault") / "fault"


@pytest.fixture(scope="module")
def engine(model: Path, fault: Path) -> Iterator[Engine]:
    """Two ranks on a plugin that is installed where only this process's `sys.path` says."""
    site = fault.parent
    (site / "dummy_faulty.py").write_text(PLUGIN)
    info = site / "dummy_faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dummy-faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglk.backends]\nfaulty = dummy_faulty:Backend\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        words = ["backend.name=faulty", f"backend.options.fault={fault}", "backend.fallback=allow"]
        with started(model, *words, tp_size=2) as engine:
            yield engine


def answers(engine: Engine, name: str, sampling: SamplingParams = GREEDY) -> list[list[int]]:
    receivers = [submit(engine, f"{name}-{i}", prompt, sampling) for i, prompt in enumerate(prompts())]
    assert {receiver.wait().reason for receiver in receivers} == {"length"}
    return [receiver.token_ids for receiver in receivers]


def test_two_ranks_answer_as_one_does(engine: Engine, model: Path) -> None:
    chosen = replace(GREEDY, temperature=0.8, seed=5, repetition_penalty=1.3, logit_bias=((9, 4.0),))
    with started(model) as alone:
        expected, expected_chosen = answers(alone, "greedy"), answers(alone, "chosen", chosen)
        weights, cached = alone.weights_bytes, alone.stats().cached_prompt_tokens
    assert engine.flush_cache()
    before = engine.stats().cached_prompt_tokens
    assert answers(engine, "greedy") == expected
    assert answers(engine, "chosen", chosen) == expected_chosen
    assert engine.stats().cached_prompt_tokens - before == cached > 0
    assert engine.device_info["ranks"] == "2"
    assert engine.device_info["threads"] == "1"
    assert engine.weights_bytes < weights
    assert engine.peak_memory_bytes() > 0


@pytest.mark.parametrize(("how", "error"), [("", "RuntimeError"), ("exit", "SystemExit"), ("panic", "PanicException")])
def test_a_rank_that_fails_fails_the_step_with_its_own_words(engine: Engine, fault: Path, how: str, error: str) -> None:
    expected = answers(engine, "before")
    fault.write_text(how)
    try:
        finish = submit(engine, "bad", [1, 2, 3]).wait()
    finally:
        fault.unlink()
    assert finish.reason == "error"
    assert finish.message == f"the step failed: rank 1: op 'silu_and_mul' of 'faulty' failed: {error}: the op is broken"
    assert answers(engine, "after") == expected


def test_nan_of_one_rank_s_op_is_traced_to_it_on_the_rank_that_answers(engine: Engine, fault: Path) -> None:
    expected = answers(engine, "sound")
    fault.write_text("nan")
    try:
        finish = submit(engine, "poisoned", [1, 2, 3]).wait()
    finally:
        fault.unlink()
    assert finish.reason == "error"
    assert finish.message is not None
    assert "op silu_and_mul of faulty (" in finish.message
    assert engine.op_report().faults == {("silu_and_mul", "faulty", "op"): 1}
    assert answers(engine, "sound again") == expected


def test_ranks_find_a_backend_that_code_registers(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from sglk.backends.cpu import CpuBackend\nclass Inline(CpuBackend):\n    api_version = 1\n"
    (tmp_path / "inline_chip.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(claims, "_registered", {})
    register_backend("inline", importlib.import_module("inline_chip").Inline)
    with started(model, "backend.name=inline", tp_size=2) as engine:
        assert submit(engine, "inline", [7], GREEDY).wait().reason == "length"


def test_the_pool_is_replaced_on_all_ranks(engine: Engine) -> None:
    expected, old = answers(engine, "old"), engine.runtime
    engine.reconfigure(replace(old, max_total_tokens=256, page_size=4))
    assert engine.stats().kv_capacity_tokens == 256
    assert answers(engine, "new") == expected
    with pytest.raises(CapacityError, match=r"^runtime\.max_total_tokens=1000000000000 needs"):
        engine.reconfigure(replace(old, max_total_tokens=10**12))
    engine.reconfigure(old)
    assert answers(engine, "back") == expected


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


def ranks_of(engine: Engine) -> list[int]:
    """Pids of the ranks' processes, each below the one that guards it."""
    runner = engine._runner
    assert isinstance(runner, ParallelRunner)
    return [rank for follower in runner._followers for rank in children(follower._child.pid)]


def dead(engine: Engine) -> str:
    """Return why the engine died, when it has."""
    engine._thread.join(120)
    assert not engine.is_alive
    assert engine.failure is not None
    return engine.failure


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_killed_rank_ends_the_engine_and_nothing_hangs(model: Path, busy: bool) -> None:
    with started(model, tp_size=2) as engine:
        (rank,) = ranks_of(engine)
        receivers = [submit(engine, str(i), [i + 1], ENDLESS) for i in range(2)] if busy else []
        for receiver in receivers:
            receiver.wait_for(lambda receiver=receiver: bool(receiver.outputs))
        os.kill(rank, signal.SIGKILL)
        assert dead(engine) == "the engine died: rank 1 was killed by SIGKILL: it printed nothing"
        assert [receiver.wait().message for receiver in receivers] == [engine.failure] * len(receivers)
        with pytest.raises(RequestError, match="rank 1 was killed by SIGKILL"):
            submit(engine, "late", [1])
        wait_until(lambda: not is_alive(rank))


def test_what_a_rank_said_last_is_in_the_engine_s_log(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its own log goes with it."""
    with started(model, tp_size=2) as engine:
        (rank,) = ranks_of(engine)
        os.kill(rank, signal.SIGSEGV)
        assert "rank 1 was killed by SIGSEGV: Fatal Python error: Segmentation fault, File " in dead(engine)
    assert any("rank 1 said:   File " in message and "rank_process.py" in message for message in caplog.messages)


def test_a_rank_that_ends_while_it_loads_is_told_with_how(model: Path, tmp_path: Path) -> None:
    follower = Follower(1, tmp_path)
    try:
        wait_until(lambda: bool(children(follower._child.pid)))
        os.kill(children(follower._child.pid)[0], signal.SIGKILL)
        with pytest.raises(RunnerLost, match=r"^rank 1 was killed by SIGKILL: it printed nothing$"):
            follower.receive(120)
    finally:
        follower.stop()


def test_a_rank_that_is_asked_after_its_end_is_lost_though_its_log_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    follower = Follower(1, folder)
    follower.stop()
    shutil.rmtree(folder)
    with pytest.raises(RunnerLost, match=r"^rank 1 closed its connection$"):
        follower.receive(120)
    assert follower.end() == ("rank 1 has ended", [])


def test_a_rank_that_hangs_is_named_before_its_step_counts_as_hung_and_ends(model: Path) -> None:
    with started(model, "router.step_timeout_s=8", tp_size=2) as engine:
        (rank,) = ranks_of(engine)
        receiver = submit(engine, "endless", [1], ENDLESS)
        receiver.wait_for(lambda: bool(receiver.outputs))
        os.kill(rank, signal.SIGSTOP)
        assert dead(engine) == (
            "the engine died: rank 1 has not answered for 7.2 s; should steps take that long, raise "
            "router.step_timeout_s"
        )
        assert receiver.wait().message == engine.failure
        wait_until(lambda: not is_alive(rank))


OWNER = """
import sys
from pathlib import Path
from sglk import LLM
llm = LLM(sys.argv[1], tp_size=2, num_threads=2, max_total_tokens=512)
for follower in llm.engine._runner._followers:
    pid = follower._child.pid
    print(Path(f"/proc/{pid}/task/{pid}/children").read_text(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["kill", pytest.param("leave", marks=pytest.mark.slow)])
def test_no_rank_outlives_the_process_of_the_engine(model: Path, tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", OWNER, str(model)]
    # A killed owner cannot clear its folder of logs away.
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        rank = int(owner.stdout.readline())
        assert is_alive(rank)
        if end == "kill":
            owner.kill()
        owner.stdin.close()
        owner.wait(120)
    wait_until(lambda: not is_alive(rank))


def test_shutdown_ends_the_ranks(model: Path) -> None:
    with started(model, tp_size=2) as engine:
        ranks = ranks_of(engine)
        folder = Path(engine._runner._followers[0]._child.log).parent
        assert len(ranks) == 1
        receiver: Receiver = submit(engine, "r", [1, 2], ENDLESS)
        receiver.wait_for(lambda: bool(receiver.outputs))
    assert receiver.wait().reason == "abort"
    assert not any(is_alive(rank) for rank in ranks)
    assert not folder.exists()
    engine.shutdown()


def test_a_model_that_cannot_be_split_or_read_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    folder = write_tiny_model(tmp_path, num_attention_heads=6, num_key_value_heads=3, hidden_size=96)
    with pytest.raises(ConfigError, match=r"tp_size=2 does not split the 6 attention heads, 3 .*; allowed: 1"):
        Engine.from_config(compose("serve", [f"model={folder}", "runtime.tp_size=2"]).config)
    assert set(children(os.getpid())) <= before
