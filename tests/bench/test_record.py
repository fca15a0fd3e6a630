import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglk.bench.metrics import count, summarise
from sglk.bench.record import LoadRecord, MachineRecord, Record, RequestRecord, ServerRecord, ToolRecord
from sglk.config.bench_schema import SloConfig
from sglk.errors import RunError


def make_record() -> Record:
    requests = [
        RequestRecord(0, "warmup", "ok", 0.0, 0.2, 0.4, 8, 4, 0),
        RequestRecord(0, "measured", "ok", 0.0, 0.1, 0.3, 8, 3, 0, itl_s=[0.1, 0.1], finish_reason="length"),
        RequestRecord(1, "measured", "failed", 0.1, None, 0.2, error="HTTP 503: busy"),
    ]
    return Record(
        id="20261130T120000-cafe",
        kind="measured",
        created="2026-11-30T12:00:00+00:00",
        command="sglk bench",
        tool=ToolRecord("0.1.0", "abc"),
        machine=MachineRecord("some CPU", 2, 7.8, "Linux"),
        versions={"python": "3.11"},
        chip="cpu",
        model="smollm2",
        engine="native",
        backend="cpu",
        server=ServerRecord(kv_capacity_tokens=4096),
        runtime=None,
        workload={"name": "random", "hash": "00"},
        load=LoadRecord("generate", "flush", "launched", 600.0),
        counts=count(requests),
        duration_s=0.3,
        valid=False,
        summary=summarise(requests, SloConfig()),
        requests=requests,
    )


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    record = make_record()
    path = tmp_path / "deep" / "record.json"
    record.save(path)
    assert Record.load_file(path) == record
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]


def test_requests_are_one_a_line() -> None:
    record = make_record()
    lines = record.to_json().splitlines()
    assert [line for line in lines if line.strip().startswith('{"index"')] == lines[-5:-2]
    record.requests = []
    assert Record.from_json(record.to_json()).requests == []


def test_additions_of_a_newer_version_are_ignored() -> None:
    data = json.loads(make_record().to_json())
    data["new_field"] = data["load"]["another"] = 1
    assert Record.from_json(json.dumps(data)) == make_record()


def edit(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit("schema_version", value=2), "schema_version: expected 1, got 2"),
        (lambda data: data.pop("schema_version"), "schema_version: expected 1, got None"),
        (lambda data: data.pop("counts"), "counts: missing"),
        (edit("kind", value="guessed"), "kind: expected one of measured, simulated, got 'guessed'"),
        (edit("counts", "completed", value="1"), "counts.completed: expected a whole number, got '1'"),
        (edit("counts", "completed", value=True), "counts.completed: expected a whole number, got True"),
        (edit("summary", "goodput", value="fast"), "summary.goodput: expected a number, got 'fast'"),
        (edit("summary", value=[]), r"summary: expected an object, got \[\]"),
        (edit("requests", 1, "itl_s", value=[None]), r"requests\[1\].itl_s\[0\]: expected a number, got None"),
        (edit("summary", "goodput", value=float("nan")), "NaN is not a figure"),
        (edit("server", "kv_capacity_tokens", value=10**400), "a number of 401 digits is not a figure"),
    ],
)
def test_a_damaged_record_is_refused_in_one_line(damage: Callable[[dict[str, Any]], None], message: str) -> None:
    data = json.loads(make_record().to_json())
    damage(data)
    with pytest.raises(RunError, match=f"is not a benchmark record: {message}") as caught:
        Record.from_json(json.dumps(data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', make_record().to_json()[:-20]])
def test_text_that_is_no_record(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"r\.json' is not a benchmark record"):
        Record.load_file(path)


def test_a_missing_file_and_binary_rubbish(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read record"):
        Record.load_file(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="is not a benchmark record"):
        Record.load_file(tmp_path / "b.json")


def test_a_full_disk_keeps_the_old_record_and_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match=r"cannot write record .*: No space left on device"):
        make_record().save(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_figures_that_json_cannot_hold_are_never_written() -> None:
    record = make_record()
    record.summary["goodput"] = float("inf")
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.to_json()
