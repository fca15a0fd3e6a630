"""`sglk advise` on a running server and on recorded metrics."""

import json
import threading
from pathlib import Path

import pytest

from sglk.cli import main
from sglk.testing.scripted import ScriptedRunner
from tests.adviser.recorded import recorded
from tests.server.serving import serving, wait_until


def test_a_calm_server_and_one_whose_queue_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()
    with serving({"gpu": ScriptedRunner(gate=gate), "spare": ScriptedRunner()}, max_running_requests=2) as served:
        assert main(["advise", served.url]) == 0
        assert capsys.readouterr().out == "nothing stands out\n"
        served.call("/v1/completions", {"prompt": "x"})
        wait_until(lambda: served.deployment.fleet.stats().running_requests == 1)
        for _ in range(30):
            served.call("/v1/completions", {"prompt": "x"})
        wait_until(lambda: served.deployment.fleet.stats().queued_requests > 10)
        assert main(["advise", served.url, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["rule"], found["group"]) == ("scheduler-waits", "gpu")
        assert served.url in found["command"]
        gate.set()


def test_recorded_metrics_are_advised_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "after.prom").write_text(recorded(60, retractions_total=9, kv_used_tokens=9900))
    (tmp_path / "before.prom").write_text(recorded(0))
    assert main(["advise", str(tmp_path / "after.prom"), str(tmp_path / "before.prom")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a: the KV pool is full")
    assert "9 retractions" in out


def test_metrics_of_another_server_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.prom").write_text(recorded(0, retractions_total=1, process=5))
    (tmp_path / "new.prom").write_text(recorded(60, retractions_total=9, kv_used_tokens=9900))
    assert main(["advise", str(tmp_path / "old.prom"), str(tmp_path / "new.prom")]) == 0
    out, err = capsys.readouterr()
    assert "9 retractions" in out
    assert "old.prom: of another server than the latest one" in err


def test_a_key_is_taken_as_flag_or_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGLK_ADMIN_API_KEY", raising=False)
    with serving(server={"admin_api_key": "secret"}) as served:
        assert main(["advise", served.url]) == 2
        assert main(["advise", served.url, "--key", "secret"]) == 0
        assert main(["advise", "--key=secret", "--url", served.url]) == 0
        assert main(["advise", "--url", served.url, served.url]) == 2
        monkeypatch.setenv("SGLK_ADMIN_API_KEY", "secret")
        assert main(["advise", served.url]) == 0
        assert main(["advise", served.url, "--key"]) == 2
    assert "--key needs a value" in capsys.readouterr().err


def test_who_asks_often_leaves_no_less_of_the_past() -> None:
    with serving() as served:
        for _ in range(3):
            assert served.get("/admin/advice").json() == []
        assert served.deployment.history.advice({"left": {}}) == []
        assert len(served.deployment.history) == 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nowhere.prom"], 2, "nowhere.prom: No such file or directory; give a URL or files"),
        (["--jason"], 2, "flag '--jason' is unknown"),
        (["--url", "gpu-box:8000"], 2, "--url 'gpu-box:8000' does not begin with http:// or https://"),
        (["http://127.0.0.1:1"], 1, "does not answer"),
        (["http://127.0.0.1:1", "http://127.0.0.1:2"], 2, "one URL at a time"),
    ],
)
def test_mistakes_are_one_line(words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *words]) == code
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_files_of_something_else_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("up 1\n")
    assert main(["advise", str(tmp_path / "x")]) == 2
    assert "no metrics of an sglk server" in capsys.readouterr().err
