import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglk.bench.record import Record
from sglk.cli import main
from sglk.cluster.sticky import home_of
from sglk.engine.messages import EngineStats
from sglk.server.metrics import counters
from tests.planner.calibrations import entry, write

WORDS = ("chip=h100", "model=qwen7b", "runtime.tp_size=1", "profiles=none", "calibration=none")
SMALL = ("workload.num_requests=12", "workload.input_len=64", "workload.output_len=8", "workload.concurrency=4")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def simulated(*words: str) -> Record:
    assert main(["simulate", *WORDS, *SMALL, *words, "bench.output=record.json"]) == 0
    return Record.load_file(Path("record.json"))


def without_dates(text: str) -> str:
    return re.sub(r'"(id|created)": "[^"]*?(-\w+)?"', r"\1\2", text)


def test_a_record_is_that_of_a_benchmark_marked_as_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    record = simulated()
    assert record.kind == "simulated"
    assert record.valid
    assert record.counts.completed == 12
    assert {request.completion_tokens for request in record.requests} == {8}
    assert all(len(request.itl_s) == 7 for request in record.requests)
    assert record.simulated_groups is not None
    (group,) = record.simulated_groups
    assert (group.cost.kind, group.cost.name, group.cost.error) == ("roofline", "h100", None)
    assert group.requests == 12
    shown = capsys.readouterr().out
    assert "simulated random on qwen7b, chip h100" in shown
    assert "roofline, not calibrated" in shown


def test_a_record_names_the_profile_that_was_in_force() -> None:
    assert simulated().server.profile is None
    tuned = Path("profiles/h100/qwen7b.yaml").absolute()
    tuned.parent.mkdir(parents=True)
    tuned.write_text("# @package _global_\nruntime:\n  max_running_requests: 3\n", encoding="utf-8")
    words = [word for word in WORDS if word != "profiles=none"]
    assert main(["simulate", *words, *SMALL, "bench.output=record.json"]) == 0
    server = Record.load_file(Path("record.json")).server
    assert (server.profile, (server.runtime or {})["max_running_requests"]) == (str(tuned), 3)


def test_the_engine_s_counters_have_the_names_that_a_server_s_have() -> None:
    served = {name.removeprefix("sglk_") for name, _, _ in counters(EngineStats())}
    assert set(simulated().engine_stats) - {"cache_hit_rate"} <= served


def test_an_engine_is_busy_for_the_share_that_is_shown() -> None:
    record = simulated("workload.arrival=poisson", "workload.rate=20")
    (group,) = record.simulated_groups or ()

    assert 0 < group.busy_share < 1
    assert record.engine_stats["engine_busy_seconds"] == pytest.approx(group.busy_share * record.duration_s, rel=1e-3)


def test_the_same_seed_gives_the_same_record_to_the_byte() -> None:
    words = ("workload=chat", "workload.range_ratio=0.5")
    simulated(*words)
    first = Path("record.json").read_text()
    simulated(*words)
    assert without_dates(Path("record.json").read_text()) == without_dates(first)
    simulated(*words, "workload.seed=1")
    assert without_dates(Path("record.json").read_text()) != without_dates(first)


def test_a_document_is_all_that_json_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *WORDS, *SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "simulated"
    assert not Path("runs").exists()


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_full_disk_where_it_prints_costs_no_record(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "sglk", "simulate", *WORDS, *SMALL, *words, "bench.output=record.json"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "sglk: error: cannot write: No space left on device; make room, or write to another place\n"
    assert (ended.returncode, ended.stderr) == (1, said)
    assert Record.load_file(Path("record.json")).valid


def test_groups_share_the_requests_by_their_weights() -> None:
    first_group = "{name: a, devices: ['cuda:0','cuda:1'], weight: 80}"
    second_group = "{name: b, chip: l20, devices: ['cuda:2'], weight: 20}"
    record = simulated(f"groups=[{first_group}, {second_group}]", "workload.num_requests=40")
    assert record.simulated_groups is not None
    first, second = record.simulated_groups
    assert [(each.chip, each.replicas, each.weight, each.requests) for each in (first, second)] == [
        ("h100", 2, 80.0, 32),
        ("l20", 1, 20.0, 8),
    ]
    slower, faster = second.summary["tpot_s_p50"], first.summary["tpot_s_p50"]
    assert slower is not None
    assert faster is not None
    assert slower > faster


def test_conversations_that_name_themselves_stay_in_one_group() -> None:
    groups = "groups=[{name: a, devices: cuda:0, weight: 60}, {name: b, devices: cuda:1, weight: 40}]"
    chat = (groups, "workload=chat", "workload.turns=4", "workload.prefix_len=0", "workload.num_requests=48")
    strays, stays = simulated(*chat), simulated(*chat, "bench.sessions=true")
    homes = [home_of(f"measured-{first}", {"a": 60, "b": 40}, ("a", "b")) for first in range(0, 48, 4)]
    assert 2 < homes.count("a") < 10
    assert stays.simulated_groups is not None
    assert [each.requests for each in stays.simulated_groups] == [4 * homes.count(name) for name in ("a", "b")]
    found = [record.summary["cached_share"] or 0.0 for record in (strays, stays)]
    assert found[1] > 1.2 * found[0] > 0
    assert (strays.load.sessions, stays.load.sessions) == (False, True)


def test_more_replicas_serve_more() -> None:
    one = simulated("workload.num_requests=64", "workload.concurrency=32", "runtime.max_running_requests=4")
    four = simulated(
        "workload.num_requests=64", "workload.concurrency=32", "runtime.max_running_requests=4", "simulate.replicas=4"
    )
    assert four.simulated_groups is not None
    assert four.simulated_groups[0].replicas == 4
    rates = [record.summary["output_throughput"] or 0.0 for record in (one, four)]
    assert rates[1] > 3 * rates[0]


def test_a_report_says_what_each_what_if_supposed(capsys: pytest.CaptureFixture[str]) -> None:
    groups = "groups=[{devices: 'cuda:0', weight: 80}, {devices: 'cuda:1', chip: l20, weight: 20}]"
    for number, word in enumerate(("simulate.replicas=4", "chip.bandwidth_gb_s=500", groups)):
        assert main(["simulate", *WORDS, *SMALL, word, f"bench.output=runs/{number}.json"]) == 0
    capsys.readouterr()
    assert main(["report", "--json"]) == 0
    (ranking,) = json.loads(capsys.readouterr().out)["rankings"]
    assert ranking["knobs"] == ["chip.bandwidth_gb_s", "simulate.deployment"]
    assert sorted((row["simulate.deployment"], row["chip.bandwidth_gb_s"]) for row in ranking["rows"]) == [
        ("1 x h100", 500),
        ("1 x h100 at 80 + 1 x l20 at 20", 3350),
        ("4 x h100", 3350),
    ]
    # Of a measured run nothing is supposed.
    record = Record.load_file(Path("runs/0.json"))
    record.kind, record.simulated_groups = "measured", None
    record.save(Path("measured/record.json"))
    assert main(["report", "measured", "--json"]) == 0
    assert "simulate." not in capsys.readouterr().out.replace("simulate.replicas=4", "")


def test_a_limit_that_holds_arrivals_back_is_told() -> None:
    def told(rate: float, concurrency: int) -> list[str]:
        words = ("workload.arrival=poisson", f"workload.rate={rate:g}", f"workload.concurrency={concurrency}")
        return [each for each in simulated(*words).warnings if "held back" in each]

    (warning,) = told(1000, 4)
    assert warning.startswith("8 of 12 requests came while workload.concurrency=4 others were under way")
    assert told(1000, 0) == told(1000, 12) == told(0.1, 1) == []
    # Who waits for an answer is not held back.
    assert not any("held back" in each for each in simulated("workload.concurrency=2").warnings)
    turns = ("workload=chat", "workload.turns=3", "workload.arrival=poisson", "workload.rate=3")
    assert not any("held back" in each for each in simulated(*turns, "workload.concurrency=3").warnings)


@pytest.mark.parametrize(
    ("word", "shared"),
    [
        ("groups=[{devices: 'cuda:0'}, {devices: 'cuda:1'}]", None),
        ("simulate.replicas=3", None),
        ("groups=[{devices: 'cuda:0'}, {devices: 'cuda:0'}]", "2 replicas share cuda:0 (group0/0, group1/0), and each"),
    ],
)
def test_replicas_that_would_share_a_device_are_told(word: str, shared: str | None) -> None:
    warnings = simulated(word, "runtime.mem_fraction_static=0.4").warnings
    assert [each for each in warnings if shared is not None and each.startswith(shared)] == warnings[1:]


def test_replicas_on_a_processor_share_it_whatever_they_are_called() -> None:
    write(entry())
    words = ["simulate", "chip=cpu", "model=smollm2", *SMALL, "runtime.mem_fraction_static=0.2"]
    assert main([*words, "simulate.replicas=3", "bench.output=record.json"]) == 0
    assert Record.load_file(Path("record.json")).warnings == [
        "3 replicas share cpu (group0/0, group0/1, ...), and each is timed as if it were alone there: "
        "together they are slower"
    ]


def test_a_conversation_finds_its_beginning_in_the_cache() -> None:
    record = simulated("workload=chat", "workload.turns=4", "workload.prefix_len=128")
    share = record.summary["cached_share"]
    assert share is not None
    assert share > 0.5
    assert not any("unasked" in warning for warning in record.warnings)
    cold = simulated("workload=chat", "workload.turns=4", "workload.prefix_len=128", "runtime.disable_radix_cache=true")
    assert cold.summary["cached_share"] == 0.0


def test_what_takes_too_long_is_given_up_and_its_place_is_free_again() -> None:
    words = ("bench.timeout_s=0.6", "bench.max_failure_rate=1", "workload.output_len=64", "workload.concurrency=12")
    record = simulated(*words, "runtime.max_running_requests=2")
    late = [request for request in record.requests if not request.ok]
    assert 0 < len(late) == record.counts.timeout < 12
    assert {request.error for request in late} == {"no complete answer within 0.6 s"}
    assert {request.e2e_s for request in late} == {0.6}


def test_what_ends_in_the_step_in_which_it_is_given_up_has_no_more_gaps_than_its_client_saw() -> None:
    lengths = ("workload.output_len=64", "workload.range_ratio=0.1", "workload.concurrency=12")
    record = simulated("bench.timeout_s=0.3", "bench.max_failure_rate=1", *lengths)
    late = [request for request in record.requests if not request.ok]
    assert late
    assert [len(request.itl_s) for request in late] == [(request.completion_tokens or 0) - 1 for request in late]


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    rows = [(0, 600, 4, [1, 2]), (500, 600, 4, [1, 3]), (9000, 512, 4, [1])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    (tmp_path / "trace.jsonl").write_text(
        "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    )
    record = simulated(
        "workload=mooncake", "workload.file=trace.jsonl", "workload.num_requests=3", "workload.concurrency=0"
    )
    assert [request.sent_s for request in record.requests] == [0.0, 0.5, 9.0]
    assert [request.cached_tokens for request in record.requests] == [0, 512, 496]
    assert record.duration_s > 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("chip=cpu", "model=smollm2"),
            "chip 'cpu' states no bandwidth_gb_s and no peak_tflops, so no step can be priced; run `sglk",
        ),
        (("model=qwen72b",), "the engine cannot start"),
        (("workload.input_len=40000",), "asks for 40008 tokens of prompt and answer, the model takes 32768"),
        (("calibration=none.json",), "cannot read the calibration 'none.json': No such file or directory"),
        (("bench.url=http://localhost:1",), "is a running server, and a simulation asks none; leave it out"),
        (("simulate.replicas=0",), "simulate.replicas=0 is too small"),
        (("simulate.replicas=100000000",), "simulate.replicas=100000000 is too large; it is at most 1024"),
        (("simulate.arrival_s=-1",), "simulate.arrival_s=-1 is not a time"),
        (("simulate.replicas=2", "groups='cuda:0;cuda:1'"), "simulate.replicas and groups both say how many"),
        (("runtime.dtype=fp7",), "runtime.dtype=fp7 is not allowed"),
        (("simulate.replica=2",), "did you mean 'simulate.replicas'"),
        (("workload=azure", "workload.file=absent.csv"), "cannot read workload.file='absent.csv'"),
    ],
)
def test_a_mistake_is_one_line_with_a_way_out(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *WORDS, *SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_too_many_failures_are_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *WORDS, *SMALL, "bench.timeout_s=0.001"]) == 1
    assert "12 of 12 requests failed" in capsys.readouterr().err


def test_nothing_heavy_is_loaded() -> None:
    script = (
        "import sys; from sglk.cli import main; "
        f"assert main({['simulate', *WORDS, *SMALL, '--json']!r}) == 0; "
        "bad = {'torch', 'fastapi', 'optuna', 'pandas', 'httpx'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
